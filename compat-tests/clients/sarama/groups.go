package main

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/IBM/sarama"
	"rangeway.invalid/compat"
)

// member hands on what its sessions read, one record at a time.
type member struct {
	group   sarama.ConsumerGroup
	topic   string
	records chan *sarama.ConsumerMessage
	taken   []*sarama.ConsumerMessage
	end     context.CancelFunc
	ended   chan struct{}
	mutex   sync.Mutex
	session sarama.ConsumerGroupSession
}

func (c client) Join(group, topic string, _ compat.Protocol) (compat.Member, error) {
	return c.join(group, topic, config())
}

func (c client) join(group, topic string, config *sarama.Config) (*member, error) {
	members, err := sarama.NewConsumerGroup(c.bootstrap, group, config)
	if err != nil {
		return nil, err
	}
	ctx, end := context.WithCancel(context.Background())
	m := &member{group: members, topic: topic, records: make(chan *sarama.ConsumerMessage), end: end, ended: make(chan struct{})}
	go func() {
		defer close(m.ended)
		for ctx.Err() == nil {
			// What goes wrong shows as records that do not come.
			if members.Consume(ctx, []string{topic}, m) != nil {
				time.Sleep(100 * time.Millisecond)
			}
		}
	}()
	return m, nil
}

func (m *member) Setup(session sarama.ConsumerGroupSession) error {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	m.session = session
	return nil
}

func (m *member) Cleanup(sarama.ConsumerGroupSession) error {
	return m.Setup(nil)
}

func (m *member) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for message := range claim.Messages() {
		select {
		case m.records <- message:
		case <-session.Context().Done():
			return nil
		}
	}
	return nil
}

func (m *member) now() sarama.ConsumerGroupSession {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	return m.session
}

// take waits a second for a record, and not as long for more.
func (m *member) take(most int) (messages []*sarama.ConsumerMessage) {
	limit := time.After(time.Second)
	for len(messages) < most {
		select {
		case message := <-m.records:
			messages = append(messages, message)
			limit = time.After(100 * time.Millisecond)
		case <-limit:
			return messages
		}
	}
	return messages
}

func asRows(messages []*sarama.ConsumerMessage) (rows []compat.Row) {
	for _, message := range messages {
		rows = append(rows, row(message))
	}
	return rows
}

func (m *member) Take(most int) ([]compat.Row, error) {
	messages := m.take(most)
	m.taken = append(m.taken, messages...)
	return asRows(messages), nil
}

func (m *member) Assigned() []int32 {
	if session := m.now(); session != nil {
		return session.Claims()[m.topic]
	}
	return nil
}

func (m *member) Commit() error {
	session := m.now()
	if session == nil {
		return errors.New("the member is in no generation")
	}
	for _, message := range m.taken {
		session.MarkMessage(message, "")
	}
	session.Commit()
	return nil
}

func (m *member) Close() error {
	m.end()
	<-m.ended
	return m.group.Close()
}

func transactional(id string) *sarama.Config {
	config := config()
	config.Producer.Transaction.ID = id
	config.Producer.Transaction.Timeout = 30 * time.Second
	config.Consumer.IsolationLevel = sarama.ReadCommitted
	return config
}

type transaction struct{ sarama.SyncProducer }

func (c client) Begin(id string) (compat.Transaction, error) {
	producer, err := sarama.NewSyncProducer(c.bootstrap, transactional(id))
	if err != nil {
		return nil, err
	}
	return transaction{producer}, producer.BeginTxn()
}

func (t transaction) Begin() error { return t.BeginTxn() }

func (t transaction) Send(topic string, value []byte) error {
	_, _, err := t.SendMessage(message(topic, 0, compat.Row{Value: value}))
	return err
}

func (t transaction) Commit() error { return t.CommitTxn() }
func (t transaction) Abort() error  { return t.AbortTxn() }

func (t transaction) Close() {
	// A fenced one says so once more.
	_ = t.SyncProducer.Close()
}

type copier struct {
	transaction
	*member
	name  string
	batch []*sarama.ConsumerMessage
}

func (c client) Copier(id, group, topic string) (compat.Copier, error) {
	producer, err := sarama.NewSyncProducer(c.bootstrap, transactional(id))
	if err != nil {
		return nil, err
	}
	m, err := c.join(group, topic, transactional(id))
	return &copier{transaction{producer}, m, group, nil}, err
}

func (c *copier) Begin() error { return c.transaction.Begin() }

func (c *copier) Take(most int) ([]compat.Row, error) {
	c.batch = c.take(most)
	return asRows(c.batch), nil
}

func (c *copier) Commit() error {
	session := c.now()
	if session == nil {
		return errors.New("the member is in no generation")
	}
	metadata := &sarama.ConsumerGroupMetadata{GroupID: c.name, GenerationID: session.GenerationID(), MemberID: session.MemberID()}
	for _, message := range c.batch {
		if err := c.AddMessageToTxnWithGroupMetadata(message, metadata, nil); err != nil {
			return err
		}
	}
	return c.CommitTxn()
}

func (c *copier) Close() {
	c.transaction.Close()
	_ = c.member.Close()
}
