package compat

import (
	"errors"
	"slices"
)

func (s suite) admin() error {
	topic := s.topic("admin")
	if err := s.create(topic, 2, nil); err != nil {
		return err
	}
	err := until("the topic is listed", func() (bool, error) {
		topics, err := s.client.Topics()
		return slices.Contains(topics, topic), err
	})
	err = errors.Join(err, s.client.Grow(topic, 5), until("five partitions", func() (bool, error) {
		count, err := s.client.Partitions(topic)
		return count == 5, err
	}))
	brokers, failure := s.client.Brokers()
	return errors.Join(err, failure, same(brokers, 1, "brokers"), s.client.Delete(topic), until("the topic is gone", func() (bool, error) {
		topics, err := s.client.Topics()
		return !slices.Contains(topics, topic), err
	}))
}

func (s suite) configs() error {
	topic := s.topic("configs")
	err := s.create(topic, 1, map[string]string{"retention.ms": "3600000"})
	is := func(name, wanted string) error {
		value, err := s.client.Config(topic, name)
		return errors.Join(err, same(value, wanted, name))
	}
	err = errors.Join(err, is("retention.ms", "3600000"), is("cleanup.policy", "delete"))
	return errors.Join(err, s.client.Alter(topic, "max.message.bytes", "2000000"), is("max.message.bytes", "2000000"), is("retention.ms", "3600000"))
}

func (s suite) deleteRecords() error {
	topic := s.topic("delete")
	err := s.create(topic, 1, nil)
	_, failure := s.client.Produce(topic, 0, "none", made(10))
	err = errors.Join(err, failure, s.client.DeleteRecords(topic, 4))
	rows, failure := s.client.ReadAll(topic, false)
	err = errors.Join(err, failure, same(len(rows), 6, "records left"))
	for i, row := range rows {
		err = errors.Join(err, compare(row, Made(4+i)))
	}
	first, end, failure := s.client.Bounds(topic)
	return errors.Join(err, failure, same(first, 4, "beginning"), same(end, 10, "end"))
}

// described asks about a group while it has a member, then deletes it.
func (s suite) described(name string, protocol Protocol) error {
	topic, group := s.topic(name), "g-"+s.topic(name)
	if _, err := s.fill(name, 1); err != nil {
		return err
	}
	member, err := s.client.Join(group, topic, protocol)
	if err != nil {
		return err
	}
	is := func(wanted string, count int) error {
		return until(wanted, func() (bool, error) {
			state, members, err := s.client.Describe(group, protocol)
			return state == wanted && members == count, err
		})
	}
	err = errors.Join(take(member, 100, map[string]int{}), member.Commit(), is("Stable", 1), member.Close(), is("Empty", 0))
	offset, failure := s.client.Committed(group, topic)
	groups, unlisted := s.client.Groups()
	err = errors.Join(err, failure, unlisted, same(offset, 100, "committed offset"), same(slices.Contains(groups, group), true, "the group is listed"))
	err = errors.Join(err, s.client.DeleteGroup(group))
	groups, unlisted = s.client.Groups()
	return errors.Join(err, unlisted, same(slices.Contains(groups, group), false, "the deleted group is listed"))
}
