package main

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"rangeway.invalid/compat"
)

type member struct {
	*kgo.Client
	topic    string
	taken    []*kgo.Record
	mutex    sync.Mutex
	assigned map[int32]bool
}

func (m *member) given(_ context.Context, _ *kgo.Client, partitions map[string][]int32) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	for _, partition := range partitions[m.topic] {
		m.assigned[partition] = true
	}
}

func (m *member) gone(_ context.Context, _ *kgo.Client, partitions map[string][]int32) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	for _, partition := range partitions[m.topic] {
		delete(m.assigned, partition)
	}
}

func groupOptions(group, topic string) []kgo.Opt {
	return []kgo.Opt{kgo.ConsumerGroup(group), kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.HeartbeatInterval(500 * time.Millisecond), kgo.Balancers(kgo.RangeBalancer())}
}

func (c client) Join(group, topic string, protocol compat.Protocol) (compat.Member, error) {
	m := &member{topic: topic, assigned: map[int32]bool{}}
	options := append(groupOptions(group, topic), kgo.DisableAutoCommit(), kgo.OnPartitionsAssigned(m.given),
		kgo.OnPartitionsRevoked(m.gone), kgo.OnPartitionsLost(m.gone))
	if protocol == compat.New {
		options = append(options, kgo.ServerSideBalancer())
	}
	var err error
	m.Client, err = c.open(options...)
	return m, err
}

// take polls for a second at most.
func take(poll func(context.Context, int) kgo.Fetches, most int) ([]*kgo.Record, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	fetches := poll(ctx, most)
	if err := fetches.Err(); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return nil, err
	}
	return fetches.Records(), nil
}

func asRows(records []*kgo.Record) (rows []compat.Row) {
	for _, record := range records {
		rows = append(rows, row(record))
	}
	return rows
}

func (m *member) Take(most int) ([]compat.Row, error) {
	records, err := take(m.PollRecords, most)
	m.taken = append(m.taken, records...)
	return asRows(records), err
}

func (m *member) Assigned() []int32 {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	return slices.Collect(maps.Keys(m.assigned))
}

func (m *member) Commit() error {
	ctx, cancel := within()
	defer cancel()
	return m.CommitRecords(ctx, m.taken...)
}

func (m *member) Close() error {
	m.Client.Close()
	return nil
}

type transaction struct{ *kgo.Client }

func (c client) Begin(id string) (compat.Transaction, error) {
	cl, err := c.open(kgo.TransactionalID(id), kgo.TransactionTimeout(30*time.Second))
	if err != nil {
		return nil, err
	}
	ctx, cancel := within()
	defer cancel()
	// It is initialised at first need otherwise.
	if _, _, err = cl.ProducerID(ctx); err != nil {
		return nil, err
	}
	return transaction{cl}, cl.BeginTransaction()
}

func (t transaction) Begin() error { return t.BeginTransaction() }

func (t transaction) Send(topic string, value []byte) error {
	ctx, cancel := within()
	defer cancel()
	return t.ProduceSync(ctx, &kgo.Record{Topic: topic, Value: value}).FirstErr()
}

func (t transaction) Commit() error { return t.end(kgo.TryCommit) }
func (t transaction) Abort() error  { return t.end(kgo.TryAbort) }

func (t transaction) end(commit kgo.TransactionEndTry) error {
	ctx, cancel := within()
	defer cancel()
	return t.EndTransaction(ctx, commit)
}

type copier struct{ *kgo.GroupTransactSession }

func (c client) Copier(id, group, topic string) (compat.Copier, error) {
	options := append(groupOptions(group, topic), kgo.SeedBrokers(c.bootstrap), kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.TransactionalID(id), kgo.TransactionTimeout(30*time.Second), kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	session, err := kgo.NewGroupTransactSession(options...)
	return copier{session}, err
}

func (c copier) Take(most int) ([]compat.Row, error) {
	records, err := take(c.PollRecords, most)
	return asRows(records), err
}

func (c copier) Send(topic string, value []byte) error {
	ctx, cancel := within()
	defer cancel()
	return c.ProduceSync(ctx, &kgo.Record{Topic: topic, Value: value}).FirstErr()
}

func (c copier) Commit() error { return c.end(kgo.TryCommit) }
func (c copier) Abort() error  { return c.end(kgo.TryAbort) }

func (c copier) end(commit kgo.TransactionEndTry) error {
	ctx, cancel := within()
	defer cancel()
	committed, err := c.End(ctx, commit)
	if err == nil && committed != bool(commit) {
		err = errors.New("the transaction was aborted instead")
	}
	return err
}
