// franz-go against a broker. Usage: suite HOST:PORT
package main

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"rangeway.invalid/compat"
)

// client holds no connection: each call makes a client of its own, as the suite asks for one that does one thing.
type client struct{ bootstrap string }

func main() {
	compat.Run(client{os.Args[len(os.Args)-1]}, compat.Abilities{New: true})
}

func within() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), compat.Patience)
}

// open makes a client that sends each record to the partition that it names.
func (c client) open(options ...kgo.Opt) (*kgo.Client, error) {
	return kgo.NewClient(append(options, kgo.SeedBrokers(c.bootstrap), kgo.RecordPartitioner(kgo.ManualPartitioner()))...)
}

var codecs = map[string]kgo.CompressionCodec{"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(),
	"snappy": kgo.SnappyCompression(), "lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression()}

func record(topic string, partition int32, row compat.Row) *kgo.Record {
	record := &kgo.Record{Topic: topic, Partition: partition, Key: row.Key, Value: row.Value}
	if row.TimeMs != 0 {
		record.Timestamp = time.UnixMilli(row.TimeMs)
	}
	for _, header := range row.Headers {
		record.Headers = append(record.Headers, kgo.RecordHeader{Key: header.Key, Value: header.Value})
	}
	return record
}

func (c client) Produce(topic string, partition int32, codec string, rows []compat.Row) ([]int64, error) {
	cl, err := c.open(kgo.ProducerBatchCompression(codecs[codec]), kgo.ProducerLinger(20*time.Millisecond))
	if err != nil {
		return nil, err
	}
	defer cl.Close()
	ctx, cancel := within()
	defer cancel()
	var records []*kgo.Record
	for _, row := range rows {
		records = append(records, record(topic, partition, row))
	}
	err = cl.ProduceSync(ctx, records...).FirstErr()
	var offsets []int64
	for _, record := range records {
		offsets = append(offsets, record.Offset)
	}
	return offsets, err
}

type stream struct {
	*kgo.Client
	topic   string
	records []*kgo.Record
	errors  chan error
}

func (c client) Stream(topic string) (compat.Stream, error) {
	cl, err := c.open(kgo.ProducerLinger(5 * time.Millisecond))
	return &stream{cl, topic, nil, make(chan error, 1000)}, err
}

func (s *stream) Send(value []byte) {
	record := &kgo.Record{Topic: s.topic, Value: value}
	s.records = append(s.records, record)
	s.Produce(context.Background(), record, func(_ *kgo.Record, err error) { s.errors <- err })
}

func (s *stream) Close() (offsets []int64, err error) {
	ctx, cancel := within()
	defer cancel()
	err = s.Flush(ctx)
	for _, record := range s.records {
		offsets = append(offsets, record.Offset)
	}
	for len(s.errors) > 0 {
		err = errors.Join(err, <-s.errors)
	}
	s.Client.Close()
	return offsets, err
}

func row(r *kgo.Record) compat.Row {
	row := compat.Row{Key: r.Key, Value: r.Value, TimeMs: r.Timestamp.UnixMilli(), Partition: r.Partition, Offset: r.Offset}
	for _, header := range r.Headers {
		row.Headers = append(row.Headers, compat.Header{Key: header.Key, Value: header.Value})
	}
	return row
}

// readTo reads the first partition from an offset to a last one; markers of transactions count, and are left out.
func (c client) readTo(topic string, from, last int64, options ...kgo.Opt) (got []compat.Row, err error) {
	start := map[string]map[int32]kgo.Offset{topic: {0: kgo.NewOffset().At(from)}}
	cl, err := c.open(append(options, kgo.ConsumePartitions(start), kgo.KeepControlRecords())...)
	if err != nil {
		return nil, err
	}
	defer cl.Close()
	ctx, cancel := within()
	defer cancel()
	for at := from - 1; at < last; {
		fetches := cl.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return got, err
		}
		fetches.EachRecord(func(r *kgo.Record) {
			if at = r.Offset; !r.Attrs.IsControl() {
				got = append(got, row(r))
			}
		})
	}
	return got, nil
}

func (c client) Read(topic string, from int64, count int) ([]compat.Row, error) {
	return c.readTo(topic, from, from+int64(count)-1)
}

func (c client) ReadAll(topic string, committed bool) ([]compat.Row, error) {
	first, end, err := c.Bounds(topic)
	if err != nil {
		return nil, err
	}
	level := kgo.ReadUncommitted()
	if committed {
		level = kgo.ReadCommitted()
	}
	return c.readTo(topic, first, end-1, kgo.FetchIsolationLevel(level))
}
