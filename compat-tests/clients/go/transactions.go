package compat

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"
)

func values(rows []Row) (all []string) {
	for _, row := range rows {
		all = append(all, string(row.Value))
	}
	return all
}

// sees compares what a reader sees; of what is committed once the marker of the last transaction is there.
func (s suite) sees(topic string, committed bool, wanted []string) error {
	rows, err := s.client.ReadAll(topic, committed)
	return errors.Join(err, same(slices.Equal(values(rows), wanted), true, fmt.Sprintf("%v of %v", values(rows), wanted)))
}

// settled begins another transaction with that id: markers follow the answer, and who begins one waits for them.
func (s suite) settled(id string) error {
	next, err := s.client.Begin(id)
	if err != nil {
		return err
	}
	defer next.Close()
	return next.Abort()
}

func (s suite) transactions() error {
	topic := s.topic("txn")
	if err := s.create(topic, 1, nil); err != nil {
		return err
	}
	producer, err := s.client.Begin(topic)
	if err != nil {
		return err
	}
	var sent, committed []string
	for turn := range 6 {
		if turn > 0 {
			err = errors.Join(err, producer.Begin())
		}
		for i := range 10 {
			value := fmt.Sprintf("%d-%d", turn, i)
			err = errors.Join(err, producer.Send(topic, []byte(value)))
			sent = append(sent, value)
			if turn%2 == 0 {
				committed = append(committed, value)
			}
		}
		if turn%2 == 0 {
			err = errors.Join(err, producer.Commit())
		} else {
			err = errors.Join(err, producer.Abort())
		}
	}
	producer.Close()
	return errors.Join(err, s.settled(topic), s.sees(topic, true, committed), s.sees(topic, false, sent))
}

func (s suite) fenced() error {
	topic := s.topic("fenced")
	if err := s.create(topic, 1, nil); err != nil {
		return err
	}
	first, err := s.client.Begin(topic)
	if err != nil {
		return err
	}
	defer first.Close()
	if err = first.Send(topic, []byte("first")); err != nil {
		return err
	}
	second, err := s.client.Begin(topic)
	if err != nil {
		return err
	}
	defer second.Close()
	err = errors.Join(second.Send(topic, []byte("second")), second.Commit())
	if first.Commit() == nil {
		err = errors.Join(err, errors.New("the first producer was not fenced"))
	}
	return errors.Join(err, s.settled(topic), s.sees(topic, true, []string{"second"}))
}

// exactlyOnce copies a topic within transactions; some are aborted, and one is left open by a producer that is replaced.
func (s suite) exactlyOnce(name string, between func() error) error {
	all, err := s.fill(name+"-in", 3)
	if err != nil {
		return err
	}
	if err = s.create(s.topic(name+"-out"), 1, nil); err != nil {
		return err
	}
	copied := 0
	for instance := 0; copied < len(all); instance++ {
		if instance == 20 {
			return fmt.Errorf("%d of %d records by %d instances", copied, len(all), instance)
		}
		more, err := s.copies(name, instance, len(all)-copied, between)
		if err != nil {
			return err
		}
		copied += more
	}
	rows, err := s.client.ReadAll(s.topic(name+"-out"), true)
	got := map[string]int{}
	for _, value := range values(rows) {
		got[value]++
	}
	return errors.Join(err, same(maps.Equal(got, all), true, "each record once"))
}

// copies copies until it aborts or dies; answers how many it committed.
func (s suite) copies(name string, instance, left int, between func() error) (copied int, err error) {
	copier, err := s.client.Copier(s.topic("copy-"+name), "g-"+s.topic(name), s.topic(name+"-in"))
	if err != nil {
		return 0, err
	}
	defer copier.Close()
	for turn := 0; copied < left; turn++ {
		if err = copier.Begin(); err != nil {
			return copied, err
		}
		var batch []Row
		if err = until("a record to copy", func() (bool, error) { batch, err = copier.Take(40); return len(batch) > 0, err }); err != nil {
			return copied, err
		}
		for _, row := range batch {
			if err = copier.Send(s.topic(name+"-out"), row.Value); err != nil {
				return copied, err
			}
		}
		if instance == 0 && turn == 1 {
			// It dies with its transaction open.
			return copied, between()
		}
		if turn%4 == 2 {
			return copied, copier.Abort()
		}
		if err = copier.Commit(); err != nil {
			return copied, err
		}
		copied += len(batch)
	}
	return copied, nil
}

const keys = 10

// superseded are records for a compacted topic: of each of ten keys thirty; the newest of one is a tombstone.
func superseded() []Row {
	rows := make([]Row, 30*keys)
	for i := range rows {
		rows[i] = Row{Key: fmt.Appendf(nil, "k%d", i%keys), Value: fmt.Appendf(nil, "value %d", i), Offset: int64(i)}
	}
	rows[len(rows)-4].Value = nil
	return rows
}

func (s suite) compactionBegins() error {
	configs := map[string]string{"cleanup.policy": "compact", "segment.ms": "500", "min.cleanable.dirty.ratio": "0.01"}
	err := s.create(s.topic("compacted"), 1, configs)
	_, failure := s.client.Produce(s.topic("compacted"), 0, "none", superseded())
	return errors.Join(err, failure)
}

// compacted waits until only the newest record of each key is left, where it was.
func (s suite) compacted() error {
	wanted := superseded()[29*keys:]
	return until("only the newest of each key is left", func() (bool, error) {
		time.Sleep(600 * time.Millisecond)
		// With it the segment before closes.
		_, err := s.client.Produce(s.topic("compacted"), 0, "none", []Row{{Key: []byte("roll"), Value: []byte{}}})
		rows, failure := s.client.ReadAll(s.topic("compacted"), false)
		rows = slices.DeleteFunc(rows, func(row Row) bool { return string(row.Key) == "roll" })
		if err = errors.Join(err, failure); err != nil || len(rows) < keys {
			return false, errors.Join(err, same(len(rows), keys, "keys"))
		}
		for i, row := range rows[len(rows)-keys:] {
			row.TimeMs = wanted[i].TimeMs
			err = errors.Join(err, compare(row, wanted[i]))
		}
		return len(rows) == keys, err
	})
}
