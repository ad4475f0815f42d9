package main

import (
	"errors"
	"maps"
	"slices"

	"github.com/IBM/sarama"
	"rangeway.invalid/compat"
)

// ask makes an admin client for one question.
func ask[T any](c client, question func(sarama.ClusterAdmin) (T, error)) (answer T, err error) {
	admin, err := sarama.NewClusterAdmin(c.bootstrap, config())
	if err != nil {
		return answer, err
	}
	answer, err = question(admin)
	return answer, errors.Join(err, admin.Close())
}

func do(c client, work func(sarama.ClusterAdmin) error) error {
	_, err := ask(c, func(admin sarama.ClusterAdmin) (any, error) { return nil, work(admin) })
	return err
}

func (c client) Create(topic string, partitions int32, configs map[string]string) error {
	detail := &sarama.TopicDetail{NumPartitions: partitions, ReplicationFactor: 1, ConfigEntries: map[string]*string{}}
	for name, value := range configs {
		detail.ConfigEntries[name] = &value
	}
	return do(c, func(admin sarama.ClusterAdmin) error { return admin.CreateTopic(topic, detail, false) })
}

func (c client) OffsetAt(topic string, ms int64) (int64, error) {
	cl, err := sarama.NewClient(c.bootstrap, config())
	if err != nil {
		return 0, err
	}
	offset, err := cl.GetOffset(topic, 0, ms)
	return offset, errors.Join(err, cl.Close())
}

func (c client) Bounds(topic string) (first, end int64, err error) {
	first, err = c.OffsetAt(topic, sarama.OffsetOldest)
	end, failure := c.OffsetAt(topic, sarama.OffsetNewest)
	return first, end, errors.Join(err, failure)
}

func (c client) Topics() ([]string, error) {
	topics, err := ask(c, func(admin sarama.ClusterAdmin) (map[string]sarama.TopicDetail, error) { return admin.ListTopics() })
	return slices.Collect(maps.Keys(topics)), err
}

func (c client) Partitions(topic string) (int, error) {
	topics, err := ask(c, func(admin sarama.ClusterAdmin) ([]*sarama.TopicMetadata, error) {
		return admin.DescribeTopics([]string{topic})
	})
	if err != nil {
		return 0, err
	}
	return len(topics[0].Partitions), nil
}

func (c client) Grow(topic string, partitions int32) error {
	return do(c, func(admin sarama.ClusterAdmin) error { return admin.CreatePartitions(topic, partitions, nil, false) })
}

func (c client) Delete(topic string) error {
	return do(c, func(admin sarama.ClusterAdmin) error { return admin.DeleteTopic(topic) })
}

func (c client) Brokers() (int, error) {
	brokers, err := ask(c, func(admin sarama.ClusterAdmin) ([]*sarama.Broker, error) {
		brokers, _, err := admin.DescribeCluster()
		return brokers, err
	})
	return len(brokers), err
}

func (c client) Config(topic, name string) (string, error) {
	resource := sarama.ConfigResource{Type: sarama.TopicResource, Name: topic, ConfigNames: []string{name}}
	entries, err := ask(c, func(admin sarama.ClusterAdmin) ([]sarama.ConfigEntry, error) { return admin.DescribeConfig(resource) })
	if err != nil || len(entries) != 1 {
		return "", errors.Join(err, errors.New("not one config"))
	}
	return entries[0].Value, nil
}

func (c client) Alter(topic, name, value string) error {
	set := map[string]sarama.IncrementalAlterConfigsEntry{name: {Operation: sarama.IncrementalAlterConfigsOperationSet, Value: &value}}
	return do(c, func(admin sarama.ClusterAdmin) error {
		return admin.IncrementalAlterConfig(sarama.TopicResource, topic, set, false)
	})
}

func (c client) DeleteRecords(topic string, before int64) error {
	return do(c, func(admin sarama.ClusterAdmin) error { return admin.DeleteRecords(topic, map[int32]int64{0: before}) })
}

func (c client) Groups() ([]string, error) {
	groups, err := ask(c, func(admin sarama.ClusterAdmin) (map[string]string, error) { return admin.ListConsumerGroups() })
	return slices.Collect(maps.Keys(groups)), err
}

func (c client) Describe(group string, _ compat.Protocol) (state string, members int, err error) {
	groups, err := ask(c, func(admin sarama.ClusterAdmin) ([]*sarama.GroupDescription, error) {
		return admin.DescribeConsumerGroups([]string{group})
	})
	if err != nil {
		return "", 0, err
	}
	return groups[0].State, len(groups[0].Members), nil
}

func (c client) Committed(group, topic string) (int64, error) {
	offsets, err := ask(c, func(admin sarama.ClusterAdmin) (*sarama.OffsetFetchResponse, error) {
		return admin.ListConsumerGroupOffsets(group, map[string][]int32{topic: {0}})
	})
	if err != nil {
		return 0, err
	}
	return offsets.GetBlock(topic, 0).Offset, nil
}

func (c client) DeleteGroup(group string) error {
	return do(c, func(admin sarama.ClusterAdmin) error { return admin.DeleteConsumerGroup(group) })
}
