// Package compat is what the suites of Go clients share: what a client has to do, and the lines that prove that it can.
package compat

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// Patience is how long anything that happens soon may take.
const Patience = 60 * time.Second

// Records is how many records a topic of each codec gets.
const Records = 400

// Codecs are all that a batch may be compressed with.
var Codecs = []string{"none", "gzip", "snappy", "lz4", "zstd"}

// Header of a record; a nil value is null.
type Header struct {
	Key   string
	Value []byte
}

// Row is a record: nil keys and values are null, a time of 0 is now.
type Row struct {
	Key, Value []byte
	Headers    []Header
	TimeMs     int64
	Partition  int32
	Offset     int64
}

// Client is a Kafka client in the hands of a suite. Where no partition is named it is the first.
type Client interface {
	Create(topic string, partitions int32, configs map[string]string) error
	// Produce answers the offsets that were acknowledged, in the order of the rows.
	Produce(topic string, partition int32, codec string, rows []Row) ([]int64, error)
	// Stream opens an idempotent producer.
	Stream(topic string) (Stream, error)
	Read(topic string, from int64, count int) ([]Row, error)
	// ReadAll reads up to the end, within what is committed or all that there is.
	ReadAll(topic string, committed bool) ([]Row, error)
	// OffsetAt answers the first offset from a time on, -1 when there is none.
	OffsetAt(topic string, ms int64) (int64, error)
	Bounds(topic string) (first, end int64, err error)
	// Join makes a member of a group that reads a topic from its beginning.
	Join(group, topic string, protocol Protocol) (Member, error)
	// Begin makes a transactional producer and begins its first transaction.
	Begin(id string) (Transaction, error)
	// Copier makes a member of a group that writes within transactions together with where it stands.
	Copier(id, group, topic string) (Copier, error)
	Admin
}

// Protocol of a group.
type Protocol int

const (
	// Classic is the protocol in which a member assigns.
	Classic Protocol = iota
	// New is the one in which the coordinator does (KIP-848).
	New
)

// Stream sends without waiting.
type Stream interface {
	Send(value []byte)
	// Close waits for all that was sent and answers the offsets in the order of sending.
	Close() ([]int64, error)
}

// Member of a group.
type Member interface {
	// Take waits for records and answers at most that many; none when none came soon.
	Take(most int) ([]Row, error)
	Assigned() []int32
	// Commit commits what was taken.
	Commit() error
	Close() error
}

// Transaction is a transactional producer within a transaction.
type Transaction interface {
	Begin() error
	// Send returns when the record is acknowledged.
	Send(topic string, value []byte) error
	Commit() error
	Abort() error
	// Close lets a transaction be that is open.
	Close()
}

// Copier is a member that is a transactional producer too; to commit is to commit what was taken as well.
type Copier interface {
	Transaction
	Take(most int) ([]Row, error)
}

// Admin is what the client can ask of a cluster besides.
type Admin interface {
	Topics() ([]string, error)
	// Partitions says how many a topic has.
	Partitions(topic string) (int, error)
	Grow(topic string, partitions int32) error
	Delete(topic string) error
	Brokers() (int, error)
	Config(topic, name string) (string, error)
	Alter(topic, name, value string) error
	DeleteRecords(topic string, before int64) error
	Groups() ([]string, error)
	// Describe answers a group's state and how many members it has.
	Describe(group string, protocol Protocol) (state string, members int, err error)
	Committed(group, topic string) (int64, error)
	DeleteGroup(group string) error
}

var failed bool

// Line runs one line of a suite and reports it.
func Line(name string, work func() error) {
	began := time.Now()
	if err := work(); err != nil {
		failed = true
		fmt.Printf("FAIL %s: %s\n", name, strings.ReplaceAll(err.Error(), "\n", " "))
		return
	}
	fmt.Printf("ok %s %.1fs\n", name, time.Since(began).Seconds())
}

// Finish ends the program.
func Finish() {
	if failed {
		os.Exit(1)
	}
	os.Exit(0)
}

var input = bufio.NewReader(os.Stdin)

// RestartBroker asks the driver to restart the broker and waits until it has.
func RestartBroker() error {
	fmt.Println("RESTART")
	line, err := input.ReadString('\n')
	return errors.Join(err, same(strings.TrimSpace(line), "RESTARTED", "the driver's answer"))
}

func same[T comparable](got, wanted T, what string) error {
	if got != wanted {
		return fmt.Errorf("%s: wanted %.120s, got %.120s", what, fmt.Sprint(wanted), fmt.Sprint(got))
	}
	return nil
}

// until asks again until it holds.
func until(what string, holds func() (bool, error)) error {
	for end := time.Now().Add(Patience); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if done, err := holds(); done || err != nil {
			return err
		}
	}
	return fmt.Errorf("never: %s", what)
}

var began = time.Now().UnixMilli() - Records*1000

// Made is the record of that number: every byte value, empty and null ones among them.
func Made(i int) Row {
	row := Row{Offset: int64(i), TimeMs: began + int64(i)*1000, Value: make([]byte, 0, 300)}
	if i%7 != 0 {
		row.Key = []byte("key-" + strconv.Itoa(i))
	}
	for j := range i % 300 {
		row.Value = append(row.Value, byte(i*31+j*j))
	}
	if i%50 == 11 {
		row.Value = nil
	}
	if i%3 == 0 {
		row.Headers = []Header{{"h", []byte(strconv.Itoa(i))}, {"h", []byte("again")}, {"null", nil}}
	}
	return row
}

func made(count int) []Row {
	rows := make([]Row, count)
	for i := range rows {
		rows[i] = Made(i)
	}
	return rows
}

func sameBytes(got, wanted []byte) bool {
	return (got == nil) == (wanted == nil) && bytes.Equal(got, wanted)
}

func compare(got, wanted Row) error {
	ok := sameBytes(got.Key, wanted.Key) && sameBytes(got.Value, wanted.Value) && got.TimeMs == wanted.TimeMs &&
		got.Offset == wanted.Offset && len(got.Headers) == len(wanted.Headers)
	for i := 0; ok && i < len(wanted.Headers); i++ {
		ok = got.Headers[i].Key == wanted.Headers[i].Key && sameBytes(got.Headers[i].Value, wanted.Headers[i].Value)
	}
	if !ok {
		return fmt.Errorf("record %d: wanted %.200s, got %.200s", wanted.Offset, fmt.Sprint(wanted), fmt.Sprint(got))
	}
	return nil
}
