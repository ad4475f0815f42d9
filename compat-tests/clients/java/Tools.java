import java.util.List;
import java.util.Map;
import java.util.UUID;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringSerializer;

/** Kafka's administration tools against a broker, all of them in this one process. Usage: Tools HOST:PORT */
public final class Tools extends InProcess {
    private static final String T = "tools-" + UUID.randomUUID().toString().substring(0, 8);

    private Tools(String bootstrap) {
        super(bootstrap);
    }

    public static void main(String[] arguments) throws Exception {
        new Tools(arguments[arguments.length - 1]).main();
    }

    @Override
    protected void all() throws Exception {
        String id;
        try (var admin = Admin.create(Map.of("bootstrap.servers", bootstrap))) {
            id = admin.describeCluster().nodes().get().iterator().next().idString();
        }
        topics();
        produce(30);
        places(id);
        groups();
        topicConfigs();
        brokerConfigs(id);
        absent();
        ok("tool-topics-delete", "", "tools.TopicCommand", "--delete", "--topic", T);
        refused("tool-topics-describe-unknown", "does not exist as expected", "tools.TopicCommand", "--describe", "--topic", T);
    }

    private void topics() {
        ok("tool-topics-create", "Created topic " + T, "tools.TopicCommand",
            "--create", "--topic", T, "--partitions", "2", "--replication-factor", "1", "--config", "retention.ms=600000");
        refused("tool-topics-create-again", "Topic '" + T + "' already exists", "tools.TopicCommand",
            "--create", "--topic", T, "--partitions", "2", "--replication-factor", "1");
        refused("tool-topics-create-bad-config", "Unknown topic config name: no.such.config", "tools.TopicCommand",
            "--create", "--topic", T + "-x", "--partitions", "1", "--config", "no.such.config=1");
        refused("tool-topics-create-bad-value", "Invalid value x for configuration retention.ms: Not a number of type LONG",
            "tools.TopicCommand", "--create", "--topic", T + "-x", "--partitions", "1", "--config", "retention.ms=x");
        ok("tool-topics-alter", "", "tools.TopicCommand", "--alter", "--topic", T, "--partitions", "3");
        refused("tool-topics-alter-fewer", "currently has 3 partition\\(s\\); 2 would not be an increase", "tools.TopicCommand",
            "--alter", "--topic", T, "--partitions", "2");
        ok("tool-topics-describe", "Topic: " + T + "\\s+TopicId: \\S{22}\\s+PartitionCount: 3\\s+ReplicationFactor: 1\\s+"
            + "Configs: .*retention.ms=600000", "tools.TopicCommand", "--describe", "--topic", T);
        ok("tool-topics-list", "(?m)^" + T + "$", "tools.TopicCommand", "--list");
        ok("tool-topics-under-replicated", "^$", "tools.TopicCommand", "--describe", "--topic", T, "--under-replicated-partitions");
        ok("tool-topics-unavailable", "^$", "tools.TopicCommand", "--describe", "--topic", T, "--unavailable-partitions");
        ok("tool-topics-under-min-isr", "^$", "tools.TopicCommand", "--describe", "--topic", T, "--under-min-isr-partitions");
    }

    private void produce(int records) throws Exception {
        try (var producer = new KafkaProducer<>(Map.of("bootstrap.servers", bootstrap), new StringSerializer(), new StringSerializer())) {
            for (int n = 0; n < records; n++) {
                producer.send(new ProducerRecord<>(T, n % 3, null, "value " + n)).get();
            }
        }
    }

    private void places(String id) throws Exception {
        ok("tool-get-offsets", "(?s)" + T + ":0:10.*" + T + ":1:10.*" + T + ":2:10", "tools.GetOffsetShell", "--topic", T);
        ok("tool-get-offsets-earliest", T + ":1:0", "tools.GetOffsetShell", "--topic-partitions", T + ":1", "--time", "earliest");
        ok("tool-get-offsets-max-timestamp", T + ":2:9", "tools.GetOffsetShell", "--topic-partitions", T + ":2", "--time", "max-timestamp");
        var delete = file("{\"version\":1,\"partitions\":[{\"topic\":\"" + T + "\",\"partition\":0,\"offset\":4},"
            + "{\"topic\":\"" + T + "\",\"partition\":1,\"offset\":-1}]}");
        ok("tool-delete-records", "(?s)(?=.*" + T + "-0\tlow_watermark: 4)(?=.*" + T + "-1\tlow_watermark: 10)",
            "tools.DeleteRecordsCommand", "--offset-json-file", delete);
        ok("tool-delete-records-beyond", "(?s)" + T + "-2\terror: .*OffsetOutOfRange|OFFSET_OUT_OF_RANGE|out of range|outside the range",
            "tools.DeleteRecordsCommand", "--offset-json-file",
            file("{\"version\":1,\"partitions\":[{\"topic\":\"" + T + "\",\"partition\":2,\"offset\":99}]}"));
        ok("tool-get-offsets-after-delete", T + ":0:4", "tools.GetOffsetShell", "--topic-partitions", T + ":0", "--time", "-2");
        ok("tool-log-dirs", "(?s)\"brokers\":\\[\\{.*\"broker\":" + id + ".*\"partition\":\"" + T + "-2\"", "tools.LogDirsCommand",
            "--describe", "--topic-list", T);
        ok("tool-log-dirs-size", "\"size\":[1-9][0-9]*", "tools.LogDirsCommand", "--describe", "--topic-list", T, "--broker-list", id);

        var move = file("{\"version\":1,\"topics\":[{\"topic\":\"" + T + "\"}]}");
        ok("tool-reassign-generate", "(?s)Current partition replica assignment.*Proposed partition reassignment configuration.*" + T,
            "tools.reassign.ReassignPartitionsCommand", "--generate", "--topics-to-move-json-file", move, "--broker-list", id);
        var plan = file("{\"version\":1,\"partitions\":[{\"topic\":\"" + T + "\",\"partition\":0,\"replicas\":[" + id
            + "],\"log_dirs\":[\"any\"]}]}");
        ok("tool-reassign-execute", "Successfully started partition reassignment for " + T + "-0",
            "tools.reassign.ReassignPartitionsCommand", "--execute", "--reassignment-json-file", plan);
        ok("tool-reassign-verify", "Reassignment of partition " + T + "-0 is completed", "tools.reassign.ReassignPartitionsCommand",
            "--verify", "--reassignment-json-file", plan);
        ok("tool-reassign-list", "No partition reassignments found", "tools.reassign.ReassignPartitionsCommand", "--list");
        ok("tool-reassign-cancel", "None of the specified partition moves are active|No partition|cancelled",
            "tools.reassign.ReassignPartitionsCommand", "--cancel", "--reassignment-json-file", plan);

        ok("tool-leader-election", "Valid replica already elected for partitions " + T + "-0", "tools.LeaderElectionCommand",
            "--election-type", "preferred", "--topic", T, "--partition", "0");
        ok("tool-leader-election-unclean", "Valid replica already elected for partitions " + T + "-1", "tools.LeaderElectionCommand",
            "--election-type", "unclean", "--topic", T, "--partition", "1");
        ok("tool-leader-election-all", "", "tools.LeaderElectionCommand", "--election-type", "preferred", "--all-topic-partitions");
        refused("tool-leader-election-unknown", "UnknownTopicOrPartition|No such (topic|partition)|does not exist|Does not exist",
            "tools.LeaderElectionCommand", "--election-type", "preferred", "--topic", T, "--partition", "9");

        ok("tool-quorum-status", "(?s)ClusterId:.*LeaderId:\\s+" + id + "\\s.*HighWatermark:\\s+[0-9]+.*CurrentVoters:.*" + id,
            "tools.MetadataQuorumCommand", "describe", "--status");
        ok("tool-quorum-replication", "(?s)NodeId.*LogEndOffset.*\\n" + id + "\\s+\\S+\\s+[0-9]+\\s+0\\s.*Leader", "tools.MetadataQuorumCommand",
            "describe", "--replication");
        ok("tool-features", "Feature: metadata.version\\s+SupportedMinVersion: \\S+\\s+SupportedMaxVersion: \\S+\\s+FinalizedVersionLevel: \\S+",
            "tools.FeatureCommand", "describe");
        refused("tool-features-unknown", "no.such.feature", "tools.FeatureCommand", "upgrade", "--feature", "no.such.feature=1");
        ok("tool-cluster-id", "Cluster ID: \\S+", "tools.ClusterTool", "cluster-id");
        ok("tool-api-versions", "(?s)Produce\\(0\\): 0 to 13 .*DescribeLogDirs\\(35\\): 1 to", "tools.BrokerApiVersionsCommand");
    }

    private void topicConfigs() throws Exception {
        String[] topic = {"--entity-type", "topics", "--entity-name", T};
        ok("tool-configs-topic-alter", "Completed updating config for topic " + T, "tools.ConfigCommand",
            with(topic, "--alter", "--add-config", "max.message.bytes=2000000,compression.type=lz4,min.insync.replicas=1"));
        ok("tool-configs-topic-describe", "(?s)(?=.*max.message.bytes=2000000 sensitive=false synonyms=\\{DYNAMIC_TOPIC_CONFIG:"
            + "max.message.bytes=2000000, DEFAULT_CONFIG:message.max.bytes=1048588\\})(?=.*compression.type=lz4 sensitive=false "
            + "synonyms=\\{DYNAMIC_TOPIC_CONFIG:compression.type=lz4, DEFAULT_CONFIG:compression.type=producer\\})", "tools.ConfigCommand",
            with(topic, "--describe"));
        ok("tool-configs-topic-delete", "Completed updating config for topic " + T, "tools.ConfigCommand",
            with(topic, "--alter", "--delete-config", "max.message.bytes"));
        ok("tool-configs-topic-all", "max.message.bytes=1048588 sensitive=false synonyms=\\{DEFAULT_CONFIG:message.max.bytes=1048588\\}",
            "tools.ConfigCommand", with(topic, "--describe", "--all"));
        refused("tool-configs-topic-bad-value", "Invalid value x for configuration segment.ms: Not a number of type LONG", "tools.ConfigCommand",
            with(topic, "--alter", "--add-config", "segment.ms=x"));
        refused("tool-configs-topic-bad-list", "Unknown topic config name: no.such.config", "tools.ConfigCommand",
            with(topic, "--alter", "--add-config", "no.such.config=x"));
        ok("tool-configs-list-append", "Completed", "tools.ConfigCommand",
            with(topic, "--alter", "--add-config", "leader.replication.throttled.replicas=[0:1,1:1]"));
        ok("tool-configs-time-type", "Completed", "tools.ConfigCommand", with(topic, "--alter", "--add-config", "message.timestamp.type=LogAppendTime"));
        produce(3);
    }

    private void brokerConfigs(String id) {
        String[] one = {"--entity-type", "brokers", "--entity-name", id};
        String[] all = {"--entity-type", "brokers", "--entity-default"};
        ok("tool-configs-broker-alter", "Completed updating config for broker " + id, "tools.ConfigCommand",
            with(one, "--alter", "--add-config", "log.retention.ms=3600000"));
        ok("tool-configs-brokers-alter", "Completed updating default config for brokers in the cluster", "tools.ConfigCommand",
            with(all, "--alter", "--add-config", "log.retention.ms=7200000"));
        ok("tool-configs-broker-describe", "log.retention.ms=3600000 sensitive=false synonyms=\\{DYNAMIC_BROKER_CONFIG:"
            + "log.retention.ms=3600000, DYNAMIC_DEFAULT_BROKER_CONFIG:log.retention.ms=7200000", "tools.ConfigCommand", with(one, "--describe"));
        ok("tool-configs-brokers-describe", "log.retention.ms=7200000 sensitive=false synonyms=\\{DYNAMIC_DEFAULT_BROKER_CONFIG:"
            + "log.retention.ms=7200000", "tools.ConfigCommand", with(all, "--describe"));
        ok("tool-configs-broker-delete", "Completed", "tools.ConfigCommand", with(one, "--alter", "--delete-config", "log.retention.ms"));
        ok("tool-configs-brokers-delete", "Completed", "tools.ConfigCommand", with(all, "--alter", "--delete-config", "log.retention.ms"));
        refused("tool-configs-broker-static", "Cannot update these configs dynamically: \\[num.partitions\\]", "tools.ConfigCommand",
            with(one, "--alter", "--add-config", "num.partitions=3"));
        refused("tool-configs-broker-bad-value", "Invalid value x for configuration log.retention.ms: Not a number of type LONG", "tools.ConfigCommand",
            with(one, "--alter", "--add-config", "log.retention.ms=x"));
        ok("tool-configs-broker-all", "(?s)(?=.*\\bnum.partitions=)(?=.*\\bauto.create.topics.enable=true)(?=.*\\blog.dirs=/)"
            + "(?=.*\\bnode.id=" + id + ")(?=.*\\boffsets.retention.minutes=10080)(?=.*\\blisteners=PLAINTEXT://)", "tools.ConfigCommand",
            with(one, "--describe", "--all"));
        String[] loggers = {"--entity-type", "broker-loggers", "--entity-name", id};
        ok("tool-configs-loggers-alter", "Completed updating config for broker-logger " + id, "tools.ConfigCommand",
            with(loggers, "--alter", "--add-config", "root=WARN"));
        ok("tool-configs-loggers-describe", "root=WARN sensitive=false", "tools.ConfigCommand", with(loggers, "--describe"));
        refused("tool-configs-loggers-unknown", "Invalid broker logger\\(s\\): no.such.logger", "tools.ConfigCommand",
            with(loggers, "--alter", "--add-config", "no.such.logger=INFO"));
    }

    /** After the front of partition 0 and all of partition 1 was deleted. */
    private void groups() {
        String tool = "tools.consumer.group.ConsumerGroupCommand";
        String group = "g-" + T;
        String[] reset = {"--reset-offsets", "--group", group, "--topic"};
        ok("tool-groups-reset-dry-run", at(0, "4") + at(1, "10") + at(2, "0"), tool, with(reset, T, "--to-earliest", "--dry-run"));
        ok("tool-groups-describe-unknown", "Group " + group + " not found", tool, "--describe", "--group", group);
        ok("tool-groups-reset", at(0, "10") + at(1, "10") + at(2, "10"), tool, with(reset, T, "--to-latest", "--execute"));
        ok("tool-groups-reset-shift", at(2, "7"), tool, with(reset, T + ":2", "--shift-by", "-3", "--execute"));
        ok("tool-groups-describe", at(1, "10\\s+10\\s+0\\s+-") + at(2, "7\\s+10\\s+3\\s+-"), tool, "--describe", "--group", group);
        ok("tool-groups-reset-beyond", at(0, "10") + at(2, "10"), tool,
            with(reset, T + ":0,2", "--to-offset", "100", "--execute"));
        ok("tool-groups-reset-below", at(0, "4") + at(1, "10") + at(2, "1"), tool, with(reset, T, "--to-offset", "1", "--dry-run"));
        ok("tool-groups-reset-current", at(0, "10") + at(1, "10") + at(2, "10"), tool,
            "--reset-offsets", "--group", group, "--all-topics", "--to-current", "--dry-run");
        ok("tool-groups-state", group + "\\s+\\S+\\s+\\(\\d+\\)\\s+-\\s+Empty\\s+0", tool, "--describe", "--group", group, "--state");
        ok("tool-groups-members", "has no active members", tool, "--describe", "--group", group, "--members");
        ok("tool-groups-list-state", group + "\\s+Empty", tool, "--list", "--state");
        offsetsTopic(group);
        ok("tool-groups-delete-offsets", at(0, "Successful"), tool, "--delete-offsets", "--group", group, "--topic", T + ":0");
        ok("tool-groups-delete", "Deletion of requested consumer groups \\('" + group + "'\\) was successful", tool,
            "--delete", "--group", group);
        ok("tool-groups-delete-again", "could not be deleted due to: .*GroupIdNotFoundException", tool, "--delete", "--group", group);
    }

    /** What tools that export offsets read, through the console consumer and Kafka's formatters of these records. */
    private void offsetsTopic(String group) {
        String offset = "\"group\":\"" + group + "\",\"topic\":\"" + T + "\",\"partition\":2\\}\\},\"value\":\\{[^}]*\"offset\":10,";
        String metadata = "\"type\":2,\"data\":\\{\"group\":\"console-consumer-[^}]*\\}\\},\"value\":.*\"protocol\":\"range\"";
        String[] read = {"--topic", "__consumer_offsets", "--from-beginning", "--timeout-ms", "10000", "--formatter"};
        String formatters = "org.apache.kafka.tools.consumer.";
        ok("tool-offsets-topic", offset, "tools.consumer.ConsoleConsumer", with(read, formatters + "OffsetsMessageFormatter"));
        ok("tool-offsets-topic-groups", metadata, "tools.consumer.ConsoleConsumer",
            with(read, formatters + "GroupMetadataMessageFormatter"));
        ok("tool-offsets-topic-describe", "PartitionCount: \\d+\\s.*cleanup.policy=compact", "tools.TopicCommand",
            "--describe", "--topic", "__consumer_offsets");
        ok("tool-offsets-topic-list", "(?m)^__consumer_offsets$", "tools.TopicCommand", "--list");
        ok("tool-offsets-topic-list-excluded", "^(?!(?s:.*)__consumer_offsets)", "tools.TopicCommand", "--list", "--exclude-internal");
    }

    /** A row of a partition of the topic, wherever it is printed. */
    private static String at(int partition, String what) {
        return "(?=(?s:.*)" + T + "\\s+" + partition + "\\s+" + what + "(?:\\s|$))";
    }

    /** What neither broker has, and says so alike. */
    private void absent() {
        ok("tool-configs-quotas-none", "^$", "tools.ConfigCommand", "--entity-type", "clients", "--describe");
        ok("tool-configs-users-none", "^$", "tools.ConfigCommand", "--entity-type", "users", "--describe");
        ok("tool-client-metrics-none", "^$", "tools.ClientMetricsCommand", "--list");
        refused("tool-acls-disabled", "No Authorizer is configured", "tools.AclCommand", "--list");
        refused("tool-acls-add-disabled", "No Authorizer is configured", "tools.AclCommand",
            "--add", "--allow-principal", "User:a", "--operation", "Read", "--topic", T);
    }
}
