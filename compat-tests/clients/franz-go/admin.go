package main

import (
	"context"
	"errors"

	"github.com/twmb/franz-go/pkg/kadm"
	"rangeway.invalid/compat"
)

// ask makes an admin client for one question.
func ask[T any](c client, question func(context.Context, *kadm.Client) (T, error)) (answer T, err error) {
	cl, err := c.open()
	if err != nil {
		return answer, err
	}
	defer cl.Close()
	ctx, cancel := within()
	defer cancel()
	return question(ctx, kadm.NewClient(cl))
}

func (c client) Create(topic string, partitions int32, configs map[string]string) error {
	values := map[string]*string{}
	for name, value := range configs {
		values[name] = &value
	}
	_, err := ask(c, func(ctx context.Context, adm *kadm.Client) (kadm.CreateTopicResponse, error) {
		return adm.CreateTopic(ctx, partitions, 1, values, topic)
	})
	return err
}

func (c client) Bounds(topic string) (first, end int64, err error) {
	_, err = ask(c, func(ctx context.Context, adm *kadm.Client) (_ any, err error) {
		starts, err := adm.ListStartOffsets(ctx, topic)
		ends, failure := adm.ListEndOffsets(ctx, topic)
		start, _ := starts.Lookup(topic, 0)
		last, _ := ends.Lookup(topic, 0)
		first, end = start.Offset, last.Offset
		return nil, errors.Join(err, failure, start.Err, last.Err)
	})
	return first, end, err
}

func (c client) OffsetAt(topic string, ms int64) (int64, error) {
	offsets, err := ask(c, func(ctx context.Context, adm *kadm.Client) (kadm.ListedOffsets, error) {
		return adm.ListOffsetsAfterMilli(ctx, ms, topic)
	})
	offset, _ := offsets.Lookup(topic, 0)
	// Where no record is as new kadm answers the end.
	if offset.Timestamp == -1 {
		return -1, errors.Join(err, offset.Err)
	}
	return offset.Offset, errors.Join(err, offset.Err)
}

func (c client) details(topics ...string) (kadm.TopicDetails, error) {
	return ask(c, func(ctx context.Context, adm *kadm.Client) (kadm.TopicDetails, error) {
		return adm.ListTopics(ctx, topics...)
	})
}

func (c client) Topics() ([]string, error) {
	details, err := c.details()
	return details.Names(), err
}

func (c client) Partitions(topic string) (int, error) {
	details, err := c.details(topic)
	return len(details[topic].Partitions), err
}

func (c client) Grow(topic string, partitions int32) error {
	answer, err := ask(c, func(ctx context.Context, adm *kadm.Client) (kadm.CreatePartitionsResponses, error) {
		return adm.UpdatePartitions(ctx, int(partitions), topic)
	})
	return errors.Join(err, answer.Error())
}

func (c client) Delete(topic string) error {
	_, err := ask(c, func(ctx context.Context, adm *kadm.Client) (kadm.DeleteTopicResponse, error) {
		return adm.DeleteTopic(ctx, topic)
	})
	return err
}

func (c client) Brokers() (int, error) {
	brokers, err := ask(c, func(ctx context.Context, adm *kadm.Client) (kadm.BrokerDetails, error) { return adm.ListBrokers(ctx) })
	return len(brokers), err
}

func (c client) Config(topic, name string) (string, error) {
	return ask(c, func(ctx context.Context, adm *kadm.Client) (string, error) {
		all, err := adm.DescribeTopicConfigs(ctx, topic)
		if err != nil {
			return "", err
		}
		resource, err := all.On(topic, nil)
		for _, config := range resource.Configs {
			if config.Key == name {
				return config.MaybeValue(), errors.Join(err, resource.Err)
			}
		}
		return "", errors.Join(err, resource.Err, errors.New("no config "+name))
	})
}

func (c client) Alter(topic, name, value string) error {
	answer, err := ask(c, func(ctx context.Context, adm *kadm.Client) (kadm.AlterConfigsResponses, error) {
		return adm.AlterTopicConfigs(ctx, []kadm.AlterConfig{{Op: kadm.SetConfig, Name: name, Value: &value}}, topic)
	})
	for _, one := range answer {
		err = errors.Join(err, one.Err)
	}
	return err
}

func (c client) DeleteRecords(topic string, before int64) error {
	var offsets kadm.Offsets
	offsets.AddOffset(topic, 0, before, -1)
	answer, err := ask(c, func(ctx context.Context, adm *kadm.Client) (kadm.DeleteRecordsResponses, error) {
		return adm.DeleteRecords(ctx, offsets)
	})
	return errors.Join(err, answer.Error())
}

func (c client) Groups() ([]string, error) {
	groups, err := ask(c, func(ctx context.Context, adm *kadm.Client) (kadm.ListedGroups, error) { return adm.ListGroups(ctx) })
	return groups.Groups(), err
}

func (c client) Describe(group string, protocol compat.Protocol) (state string, members int, err error) {
	if protocol == compat.New {
		groups, err := ask(c, func(ctx context.Context, adm *kadm.Client) (kadm.DescribedConsumerGroups, error) {
			return adm.DescribeConsumerGroups(ctx, group)
		})
		return groups[group].State, len(groups[group].Members), errors.Join(err, groups[group].Err)
	}
	groups, err := ask(c, func(ctx context.Context, adm *kadm.Client) (kadm.DescribedGroups, error) {
		return adm.DescribeGroups(ctx, group)
	})
	return groups[group].State, len(groups[group].Members), errors.Join(err, groups[group].Err)
}

func (c client) Committed(group, topic string) (int64, error) {
	offsets, err := ask(c, func(ctx context.Context, adm *kadm.Client) (kadm.OffsetResponses, error) {
		return adm.FetchOffsets(ctx, group)
	})
	offset, _ := offsets.Lookup(topic, 0)
	return offset.At, errors.Join(err, offset.Err)
}

func (c client) DeleteGroup(group string) error {
	_, err := ask(c, func(ctx context.Context, adm *kadm.Client) (kadm.DeleteGroupResponse, error) {
		return adm.DeleteGroup(ctx, group)
	})
	return err
}
