// Sarama against a broker. Usage: suite HOST:PORT
package main

import (
	"errors"
	"os"
	"time"

	"github.com/IBM/sarama"
	"rangeway.invalid/compat"
)

// client holds no connection: each call makes a client of its own, as the suite asks for one that does one thing.
type client struct{ bootstrap []string }

func main() {
	compat.Run(client{os.Args[len(os.Args)-1:]}, compat.Abilities{})
}

var codecs = map[string]sarama.CompressionCodec{"none": sarama.CompressionNone, "gzip": sarama.CompressionGZIP,
	"snappy": sarama.CompressionSnappy, "lz4": sarama.CompressionLZ4, "zstd": sarama.CompressionZSTD}

// config is that of an idempotent producer and of a reader from the beginning.
func config() *sarama.Config {
	config := sarama.NewConfig()
	config.Version = sarama.V4_3_1_0
	config.Producer.Idempotent = true
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Producer.Return.Successes = true
	config.Producer.Partitioner = sarama.NewManualPartitioner
	config.Producer.Flush.Frequency = 5 * time.Millisecond
	config.Producer.Retry.Max = 1000 // a broker may be away for long
	config.Net.MaxOpenRequests = 1
	config.Consumer.MaxWaitTime = 100 * time.Millisecond
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Consumer.Offsets.AutoCommit.Enable = false
	config.Consumer.Group.Heartbeat.Interval = 500 * time.Millisecond
	config.Consumer.Group.Rebalance.Retry.Backoff = 100 * time.Millisecond
	return config
}

func message(topic string, partition int32, row compat.Row) *sarama.ProducerMessage {
	message := &sarama.ProducerMessage{Topic: topic, Partition: partition}
	if row.Key != nil {
		message.Key = sarama.ByteEncoder(row.Key)
	}
	if row.Value != nil {
		message.Value = sarama.ByteEncoder(row.Value)
	}
	if row.TimeMs != 0 {
		message.Timestamp = time.UnixMilli(row.TimeMs)
	}
	for _, header := range row.Headers {
		message.Headers = append(message.Headers, sarama.RecordHeader{Key: []byte(header.Key), Value: header.Value})
	}
	return message
}

func (c client) Produce(topic string, partition int32, codec string, rows []compat.Row) ([]int64, error) {
	config := config()
	config.Producer.Compression = codecs[codec]
	producer, err := sarama.NewSyncProducer(c.bootstrap, config)
	if err != nil {
		return nil, err
	}
	var messages []*sarama.ProducerMessage
	for _, row := range rows {
		messages = append(messages, message(topic, partition, row))
	}
	err = producer.SendMessages(messages)
	var offsets []int64
	for _, message := range messages {
		offsets = append(offsets, message.Offset)
	}
	return offsets, errors.Join(err, producer.Close())
}

type stream struct {
	sarama.AsyncProducer
	topic    string
	messages []*sarama.ProducerMessage
	ended    chan error
}

func (c client) Stream(topic string) (compat.Stream, error) {
	config := config()
	// Whoever asks for the leader while the only broker is away, or leads nothing yet, gives up after these, whatever Producer.Retry says.
	config.Metadata.Retry.Max = 240
	producer, err := sarama.NewAsyncProducer(c.bootstrap, config)
	if err != nil {
		return nil, err
	}
	s := &stream{producer, topic, nil, make(chan error, 1000)}
	go func() {
		for range producer.Successes() {
			s.ended <- nil
		}
	}()
	go func() {
		for failure := range producer.Errors() {
			s.ended <- failure
		}
	}()
	return s, nil
}

func (s *stream) Send(value []byte) {
	message := message(s.topic, 0, compat.Row{Value: value})
	s.messages = append(s.messages, message)
	s.Input() <- message
}

func (s *stream) Close() (offsets []int64, err error) {
	for _, message := range s.messages {
		err = errors.Join(err, <-s.ended)
		_ = message
	}
	for _, message := range s.messages {
		offsets = append(offsets, message.Offset)
	}
	s.AsyncClose()
	return offsets, err
}

func row(message *sarama.ConsumerMessage) compat.Row {
	row := compat.Row{Key: message.Key, Value: message.Value, TimeMs: message.Timestamp.UnixMilli(), Partition: message.Partition, Offset: message.Offset}
	for _, header := range message.Headers {
		row.Headers = append(row.Headers, compat.Header{Key: string(header.Key), Value: header.Value})
	}
	return row
}

// reader reads the first partition from an offset on.
func (c client) reader(topic string, from int64, config *sarama.Config, reads func(sarama.PartitionConsumer) error) error {
	consumer, err := sarama.NewConsumer(c.bootstrap, config)
	if err != nil {
		return err
	}
	partition, err := consumer.ConsumePartition(topic, 0, from)
	if err != nil {
		return errors.Join(err, consumer.Close())
	}
	return errors.Join(reads(partition), partition.Close(), consumer.Close())
}

func (c client) Read(topic string, from int64, count int) (rows []compat.Row, err error) {
	return rows, errors.Join(err, c.reader(topic, from, config(), func(partition sarama.PartitionConsumer) error {
		limit := time.After(compat.Patience)
		for len(rows) < count {
			select {
			case message := <-partition.Messages():
				rows = append(rows, row(message))
			case <-limit:
				return errors.New("no end within the time limit")
			}
		}
		return nil
	}))
}

// ReadAll reads until nothing more comes: this client does not say where it is when what comes is left out.
func (c client) ReadAll(topic string, committed bool) (rows []compat.Row, err error) {
	first, _, err := c.Bounds(topic)
	if err != nil {
		return nil, err
	}
	config := config()
	if committed {
		config.Consumer.IsolationLevel = sarama.ReadCommitted
	}
	return rows, c.reader(topic, first, config, func(partition sarama.PartitionConsumer) error {
		for {
			select {
			case message := <-partition.Messages():
				rows = append(rows, row(message))
			case <-time.After(1500 * time.Millisecond):
				return nil
			}
		}
	})
}
