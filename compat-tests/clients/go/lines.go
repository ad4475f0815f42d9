package compat

import (
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"
)

type suite struct {
	client Client
	run    string
}

// Abilities are what not every client has.
type Abilities struct {
	// New: the group protocol in which the coordinator assigns (KIP-848).
	New bool
}

// Run runs all lines that the client is able to.
func Run(client Client, able Abilities) {
	s := suite{client, strconv.FormatInt(time.Now().UnixNano(), 36)}
	nothing := func() error { return nil }
	begun := s.compactionBegins()
	for _, codec := range Codecs {
		Line("produce-consume-"+codec, func() error { return s.codec(codec) })
	}
	Line("consume-from-offset", s.fromOffset)
	Line("consume-from-time", s.fromTime)
	Line("large-value", s.large)
	Line("group-rest-after-consumer-restart", func() error { return s.groupRest("rest", Classic, nothing) })
	Line("group-rest-after-broker-restart", func() error { return s.groupRest("broker", Classic, RestartBroker) })
	Line("group-of-two-shares", func() error { return s.groupShared("shared", Classic) })
	if able.New {
		Line("new-group-rest-after-consumer-restart", func() error { return s.groupRest("new-rest", New, nothing) })
		Line("new-group-rest-after-broker-restart", func() error { return s.groupRest("new-broker", New, RestartBroker) })
		Line("new-group-of-two-shares", func() error { return s.groupShared("new-shared", New) })
		Line("new-group-is-described", func() error { return s.described("new-described", New) })
	}
	Line("idempotent-over-broker-restart", s.idempotent)
	Line("transactions-commit-and-abort", s.transactions)
	Line("transactions-fence-the-producer-before", s.fenced)
	Line("consume-transform-produce-exactly-once", func() error { return s.exactlyOnce("once", nothing) })
	Line("exactly-once-over-broker-restart", func() error { return s.exactlyOnce("again", RestartBroker) })
	Line("records-survive-broker-restart", s.codecsAgain)
	Line("admin", s.admin)
	Line("admin-configs", s.configs)
	Line("admin-delete-records", s.deleteRecords)
	Line("admin-groups", func() error { return s.described("groups", Classic) })
	Line("compaction-keeps-the-newest", func() error { return errors.Join(begun, s.compacted()) })
	Finish()
}

func (s suite) topic(name string) string { return "go-" + s.run + "-" + name }

// create makes a topic and waits until the broker knows it.
func (s suite) create(topic string, partitions int32, configs map[string]string) error {
	if err := s.client.Create(topic, partitions, configs); err != nil {
		return err
	}
	return until("the topic has its partitions", func() (bool, error) {
		count, _ := s.client.Partitions(topic)
		return count == int(partitions), nil
	})
}

func (s suite) sameRead(topic string, from int) error {
	got, err := s.client.Read(topic, int64(from), Records-from)
	for i, row := range got {
		err = errors.Join(err, compare(row, Made(from+i)))
	}
	return errors.Join(err, same(len(got), Records-from, "records"))
}

func (s suite) codec(codec string) error {
	topic := s.topic(codec)
	if err := s.create(topic, 1, nil); err != nil {
		return err
	}
	offsets, err := s.client.Produce(topic, 0, codec, made(Records))
	for i, offset := range offsets {
		err = errors.Join(err, same(offset, int64(i), "acknowledged offset"))
	}
	return errors.Join(err, same(len(offsets), Records, "acknowledged records"), s.sameRead(topic, 0))
}

func (s suite) codecsAgain() (err error) {
	for _, codec := range Codecs {
		err = errors.Join(err, s.sameRead(s.topic(codec), 0))
	}
	return err
}

func (s suite) fromOffset() error { return s.sameRead(s.topic("gzip"), 123) }

func (s suite) fromTime() (err error) {
	at := Made(200).TimeMs
	for _, pair := range [][2]int64{{at, 200}, {at - 1, 200}, {at + 1, 201}, {0, 0}, {at * 2, -1}} {
		offset, failure := s.client.OffsetAt(s.topic("zstd"), pair[0])
		err = errors.Join(err, failure, same(offset, pair[1], fmt.Sprintf("offset at %d", pair[0])))
	}
	first, end, failure := s.client.Bounds(s.topic("zstd"))
	return errors.Join(err, failure, same(first, 0, "beginning"), same(end, Records, "end"))
}

func (s suite) large() error {
	topic, value := s.topic("large"), make([]byte, 900_000)
	_, _ = rand.Read(value)
	err := s.create(topic, 1, nil)
	_, failure := s.client.Produce(topic, 0, "none", []Row{{Value: value}})
	got, unread := s.client.Read(topic, 0, 1)
	if err = errors.Join(err, failure, unread); err != nil {
		return err
	}
	return same(sameBytes(got[0].Value, value), true, "every byte of a large value")
}

// fill makes a topic with 100 records in each partition; answers their values.
func (s suite) fill(name string, partitions int32) (map[string]int, error) {
	values := map[string]int{}
	err := s.create(s.topic(name), partitions, nil)
	for partition := range partitions {
		var rows []Row
		for i := range 100 {
			value := fmt.Sprintf("%d-%d", partition, i)
			rows = append(rows, Row{Value: []byte(value)})
			values[value] = 1
		}
		_, failure := s.client.Produce(s.topic(name), partition, "none", rows)
		err = errors.Join(err, failure)
	}
	return values, err
}

// take waits until that many records came and counts their values.
func take(member interface{ Take(int) ([]Row, error) }, count int, values map[string]int) error {
	return until(fmt.Sprintf("%d records", count), func() (bool, error) {
		rows, err := member.Take(count)
		for _, row := range rows {
			values[string(row.Value)]++
		}
		count -= len(rows)
		return count == 0, err
	})
}

func (s suite) groupRest(name string, protocol Protocol, between func() error) error {
	all, err := s.fill(name, 3)
	if err != nil {
		return err
	}
	got := map[string]int{}
	first, err := s.client.Join("g-"+s.topic(name), s.topic(name), protocol)
	if err != nil {
		return err
	}
	if err = errors.Join(take(first, 150, got), first.Commit(), first.Close(), between()); err != nil {
		return err
	}
	second, err := s.client.Join("g-"+s.topic(name), s.topic(name), protocol)
	if err != nil {
		return err
	}
	err = take(second, 150, got)
	more, failure := second.Take(1)
	err = errors.Join(err, failure, same(len(more), 0, "records more than the rest"), second.Commit(), second.Close())
	return errors.Join(err, same(maps.Equal(got, all), true, "each record once in both halves together"))
}

func (s suite) groupShared(name string, protocol Protocol) error {
	all, err := s.fill(name, 4)
	if err != nil {
		return err
	}
	var members [2]Member
	for i := range members {
		if members[i], err = s.client.Join("g-"+s.topic(name), s.topic(name), protocol); err != nil {
			return err
		}
	}
	got := map[string]int{}
	err = until("each reads two partitions, and both together read all", func() (bool, error) {
		for _, member := range members {
			rows, err := member.Take(100)
			if err != nil {
				return false, err
			}
			for _, row := range rows {
				got[string(row.Value)] = 1
			}
		}
		one, two := members[0].Assigned(), members[1].Assigned()
		both := slices.Concat(one, two)
		slices.Sort(both)
		return len(one) == 2 && slices.Equal(both, []int32{0, 1, 2, 3}) && maps.Equal(got, all), nil
	})
	return errors.Join(err, members[0].Close(), members[1].Close())
}

// idempotent proves that records on their way while the broker restarts are there once, in their order.
func (s suite) idempotent() error {
	topic := s.topic("idempotent")
	if err := s.create(topic, 1, nil); err != nil {
		return err
	}
	stream, err := s.client.Stream(topic)
	if err != nil {
		return err
	}
	restarted := make(chan error, 1)
	for i := range 300 {
		if i == 100 {
			go func() { restarted <- RestartBroker() }()
		}
		stream.Send([]byte(strconv.Itoa(i)))
		time.Sleep(10 * time.Millisecond)
	}
	offsets, err := stream.Close()
	err = errors.Join(err, <-restarted, same(len(offsets), 300, "acknowledged records"))
	for i, offset := range offsets {
		err = errors.Join(err, same(offset, int64(i), "acknowledged offset"))
	}
	rows, failure := s.client.ReadAll(topic, false)
	for i, row := range rows {
		err = errors.Join(err, same(string(row.Value), strconv.Itoa(i), "value"))
	}
	return errors.Join(err, failure, same(len(rows), 300, "records"))
}
