import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.UUID;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.Config;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.apache.kafka.connect.mirror.MirrorClient;

/**
 * MirrorMaker 2 between two brokers, both ways at once: records, configs and partitions of topics,
 * offsets of groups, checkpoints, heartbeats; MirrorMaker is killed, a broker restarted. Usage: Mirror PEER:PORT HOST:PORT
 *
 * RANGEWAY_COMPAT_MIRROR_RECORDS: records per step and way.
 */
public final class Mirror {
    private static final int RECORDS = Integer.parseInt(System.getenv().getOrDefault("RANGEWAY_COMPAT_MIRROR_RECORDS", "600"));
    private static final String RUN = UUID.randomUUID().toString().substring(0, 8);
    private static final long BEGAN_MS = System.currentTimeMillis() - 600_000;
    private static final int HEAP_MB = 512;

    private final Map<String, String> clusters;
    private final Path home;
    private final Path log;
    private final List<Way> ways;
    private Process maker;

    private Mirror(String peer, String bootstrap) throws Exception {
        this.clusters = Map.of("us", bootstrap, "peer", peer);
        this.home = Files.createTempDirectory("mirror");
        this.log = home.resolve("log");
        this.ways = List.of(new Way("into", "peer", "us"), new Way("out", "us", "peer"));
    }

    public static void main(String[] arguments) throws Exception {
        var suite = new Mirror(arguments[arguments.length - 2], arguments[arguments.length - 1]);
        suite.run();
        try (var files = Files.walk(suite.home)) {
            for (var file : files.sorted(Comparator.reverseOrder()).toList()) {
                Files.delete(file);
            }
        }
        Lines.end();
    }

    private void run() throws Exception {
        for (var way : ways) {
            way.create();
            way.produce();
            way.consume(way.source, way.topic, way.sent);
        }
        start();
        for (var way : ways) {
            line(way.name + "-records", way::copied);
            line(way.name + "-topic-configs", way::configs);
            line(way.name + "-partitions", way::partitions);
            line(way.name + "-group-offsets", way::groupOffsets);
            line(way.name + "-checkpoints", way::checkpoints);
            line(way.name + "-heartbeats", way::heartbeats);
            line(way.name + "-internal-topics", way::internalTopics);
        }
        line("nothing-lost-over-killed-mirror-maker", () -> {
            for (var way : ways) {
                way.produce();
            }
            Lines.until("some of it is copied", () -> ways.get(0).read().size() > ways.get(0).sent - RECORDS);
            Lines.kill(maker);
            for (var way : ways) {
                way.produce();
            }
            start();
            for (var way : ways) {
                way.nothingLost();
            }
        });
        line("nothing-lost-over-broker-restart", () -> {
            for (var way : ways) {
                way.produce();
            }
            Lines.restartBroker();
            for (var way : ways) {
                way.produce();
            }
            for (var way : ways) {
                way.nothingLost();
            }
        });
    }

    private void line(String name, Lines.Work work) {
        Lines.line(name, () -> {
            try {
                work.run();
            } catch (Throwable problem) {
                Lines.show(log);
                throw problem;
            }
        });
    }

    private void start() throws Exception {
        var config = new ArrayList<>(List.of("clusters=us,peer", "replication.factor=1", "checkpoints.topic.replication.factor=1", "heartbeats.topic.replication.factor=1",
            "offset-syncs.topic.replication.factor=1", "offset.storage.replication.factor=1", "status.storage.replication.factor=1",
            "config.storage.replication.factor=1", "offset.storage.partitions=4", "status.storage.partitions=2",
            "refresh.topics.interval.seconds=1", "refresh.groups.interval.seconds=1", "sync.topic.configs.interval.seconds=1",
            "sync.group.offsets.enabled=true", "sync.group.offsets.interval.seconds=1", "emit.checkpoints.interval.seconds=1",
            "emit.heartbeats.interval.seconds=1", "offset.lag.max=0"));
        clusters.forEach((name, bootstrap) -> {
            config.add(name + ".bootstrap.servers=" + bootstrap);
            config.add(name + ".session.timeout.ms=6000");
            config.add(name + ".heartbeat.interval.ms=1000");
            config.add(name + ".scheduled.rebalance.max.delay.ms=0");
            config.add(name + ".offset.flush.interval.ms=1000");
            config.add(name + ".plugin.discovery=service_load");
        });
        for (var way : ways) {
            String arrow = way.source + "->" + way.target;
            config.addAll(List.of(arrow + ".enabled=true", arrow + ".topics=" + way.topic, arrow + ".groups=" + way.group));
        }
        maker = Lines.process(log, HEAP_MB, "org.apache.kafka.connect.mirror.MirrorMaker", Files.write(home.resolve("config"), config).toString());
    }

    /** What a record is, wherever it is. */
    private record Row(int partition, long timestampMs, String key, String value, List<Header> headers) {}

    /** From one cluster to the other. */
    private final class Way {
        private final String name;
        private final String source;
        private final String target;
        private final String topic;
        private final String group;
        private final Admin from;
        private final Admin to;
        private int partitions = 3;
        private int sent;

        private Way(String name, String source, String target) {
            this.name = name;
            this.source = source;
            this.target = target;
            this.topic = name + "-" + RUN;
            this.group = "g-" + topic;
            this.from = Admin.create(at(source));
            this.to = Admin.create(at(target));
        }

        private Map<String, Object> at(String cluster) {
            return Map.of("bootstrap.servers", clusters.get(cluster));
        }

        private String copy() {
            return source + "." + topic;
        }

        private void create() throws Exception {
            var configs = Map.of("retention.ms", "7200000", "max.message.bytes", "2000000", "cleanup.policy", "compact,delete",
                "min.compaction.lag.ms", "3600000", "compression.type", "lz4", "segment.bytes", "67108864");
            from.createTopics(List.of(new NewTopic(topic, partitions, (short) 1).configs(configs))).all().get();
        }

        /** The record of that number. */
        private Row made(int n) {
            List<Header> headers = n % 3 != 0 ? List.of()
                : List.of(new RecordHeader("number", ("" + n).getBytes(StandardCharsets.UTF_8)), new RecordHeader("null", (byte[]) null));
            return new Row(n % partitions, BEGAN_MS + n, "key-" + n, n % 7 == 0 ? null : "value " + n, headers);
        }

        private final List<Row> rows = new ArrayList<>();

        private void produce() throws Exception {
            var codecs = List.of("none", "gzip", "snappy", "lz4", "zstd");
            var config = new HashMap<>(at(source));
            config.put("compression.type", codecs.get(sent / RECORDS % codecs.size()));
            try (var producer = new KafkaProducer<>(config, new StringSerializer(), new StringSerializer())) {
                for (int n = sent; n < sent + RECORDS; n++) {
                    var row = made(n);
                    producer.send(new ProducerRecord<>(topic, row.partition, row.timestampMs, row.key, row.value, row.headers));
                    rows.add(row);
                }
            }
            sent += RECORDS;
        }

        /** Reads on as the group until it has so many records, and commits. */
        private List<Row> consume(String cluster, String name, int records) {
            var config = new HashMap<>(at(cluster));
            config.putAll(Map.of("group.id", group, "auto.offset.reset", "earliest", "enable.auto.commit", false));
            List<Row> got = new ArrayList<>();
            try (var consumer = new KafkaConsumer<>(config, new StringDeserializer(), new StringDeserializer())) {
                consumer.subscribe(List.of(name));
                long deadline = System.currentTimeMillis() + Lines.PATIENCE_MS;
                while (got.size() < records) {
                    Lines.holds(System.currentTimeMillis() < deadline, "the group reads " + records + ", not " + got.size());
                    consumer.poll(Duration.ofMillis(200)).forEach(record -> got.add(row(record)));
                }
                consumer.commitSync();
            }
            return got;
        }

        private Row row(ConsumerRecord<String, String> record) {
            return new Row(record.partition(), record.timestamp(), record.key(), record.value(), List.of(record.headers().toArray()));
        }

        /** All records of the copy, in order within a partition. */
        private List<Row> read() {
            return records().stream().map(this::row).toList();
        }

        private List<ConsumerRecord<String, String>> records() {
            var config = new HashMap<>(at(target));
            config.put("allow.auto.create.topics", "false");
            List<ConsumerRecord<String, String>> got = new ArrayList<>();
            try (var consumer = new KafkaConsumer<>(config, new StringDeserializer(), new StringDeserializer())) {
                var parts = IntStream.range(0, partitions).mapToObj(part -> new TopicPartition(copy(), part)).toList();
                consumer.assign(parts);
                consumer.seekToBeginning(parts);
                var ends = consumer.endOffsets(parts);
                long deadline = System.currentTimeMillis() + Lines.PATIENCE_MS;
                while (parts.stream().anyMatch(part -> consumer.position(part) < ends.get(part))) {
                    Lines.holds(System.currentTimeMillis() < deadline, "the end of " + copy() + " is reached");
                    consumer.poll(Duration.ofMillis(200)).forEach(got::add);
                }
            }
            return got;
        }

        private void copied() throws Exception {
            Lines.until("all is copied", () -> read().size() >= sent);
            Lines.same(byPartition(read()), byPartition(rows), "the copy");
        }

        /** What was under way comes again; the first time in order. */
        private void nothingLost() throws Exception {
            Lines.until("all is copied", () -> Set.copyOf(read()).size() >= sent);
            Lines.same(byPartition(read().stream().distinct().toList()), byPartition(rows), "the copy, repeats aside");
        }

        private static Map<Integer, List<Row>> byPartition(List<Row> rows) {
            return rows.stream().collect(Collectors.groupingBy(Row::partition));
        }

        private static final List<String> CONFIGS = List.of("retention.ms", "max.message.bytes", "cleanup.policy", "min.compaction.lag.ms",
            "compression.type", "segment.bytes", "delete.retention.ms");

        private Map<String, String> configs(Admin admin, String topic) throws Exception {
            var resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
            Config config = admin.describeConfigs(List.of(resource)).all().get().get(resource);
            return CONFIGS.stream().collect(Collectors.toMap(key -> key, key -> config.get(key).value()));
        }

        private void configs() throws Exception {
            Lines.until("the copy has the topic's configs", () -> configs(to, copy()).equals(configs(from, topic)));
            Lines.same(configs(to, copy()).get("cleanup.policy"), "compact,delete", "cleanup.policy of the copy");
            var resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
            from.incrementalAlterConfigs(Map.of(resource, List.of(
                new AlterConfigOp(new ConfigEntry("delete.retention.ms", "1234567"), AlterConfigOp.OpType.SET),
                new AlterConfigOp(new ConfigEntry("max.message.bytes", ""), AlterConfigOp.OpType.DELETE)))).all().get();
            Lines.until("the copy follows", () -> configs(to, copy()).equals(configs(from, topic)));
            Lines.same(configs(to, copy()).get("delete.retention.ms"), "1234567", "delete.retention.ms of the copy");
        }

        private void partitions() throws Exception {
            partitions = 5;
            from.createPartitions(Map.of(topic, NewPartitions.increaseTo(partitions))).all().get();
            Lines.until("the copy has as many partitions", () ->
                to.describeTopics(List.of(copy())).allTopicNames().get().get(copy()).partitions().size() == partitions);
            produce();
            copied();
        }

        /** Where the group stood in the topic, it goes on in the copy. */
        private void groupOffsets() throws Exception {
            // Who copied the new partitions' records goes on: of the one before, the last positions to translate by may be lost.
            produce();
            copied();
            // The records of the first step were read there.
            consume(source, topic, sent - RECORDS);
            int before = sent;
            Lines.until("the group's offsets are at the other side", () -> stands(committed(to, group), before));
            produce();
            copied();
            var got = consume(target, copy(), RECORDS);
            Lines.same(byPartition(got), byPartition(rows.subList(before, sent)), "what the group reads of the copy");
        }

        private Map<TopicPartition, OffsetAndMetadata> committed(Admin admin, String group) throws Exception {
            return admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get();
        }

        /** Whether the offsets are behind the last record before that number, in every partition of the copy. */
        private boolean stands(Map<TopicPartition, OffsetAndMetadata> offsets, int before) {
            Map<TopicPartition, Long> wanted = new HashMap<>();
            for (var record : records()) {
                if (Integer.parseInt(record.key().substring("key-".length())) < before) {
                    wanted.merge(new TopicPartition(record.topic(), record.partition()), record.offset() + 1, Long::max);
                }
            }
            Map<TopicPartition, Long> got = new HashMap<>();
            offsets.forEach((part, offset) -> got.put(part, offset.offset()));
            Lines.same(got, wanted, "offsets of the group in the copy");
            return true;
        }

        private void checkpoints() throws Exception {
            try (var client = new MirrorClient(at(target))) {
                String checkpoints = source + ".checkpoints.internal";
                Lines.holds(client.checkpointTopics().contains(checkpoints), checkpoints + " is there");
                Lines.until("checkpoints say where the group stands", () -> {
                    var offsets = client.remoteConsumerOffsets(group, source, Duration.ofSeconds(20));
                    Lines.same(offsets.keySet(), IntStream.range(0, partitions).mapToObj(part -> new TopicPartition(copy(), part))
                        .collect(Collectors.toSet()), "partitions of the checkpoints");
                    return stands(offsets, sent - RECORDS);
                });
                Lines.holds(client.remoteTopics(source).contains(copy()), copy() + " is a remote topic");
            }
        }

        private void heartbeats() throws Exception {
            try (var client = new MirrorClient(at(target))) {
                Lines.until("heartbeats are copied", () -> client.heartbeatTopics().contains(source + ".heartbeats"));
                Lines.same(client.replicationHops(source), 1, "hops from " + source);
                Lines.holds(client.upstreamClusters().contains(source), source + " is upstream");
            }
            var beats = new TopicPartition(source + ".heartbeats", 0);
            try (var consumer = new KafkaConsumer<>(at(target), new StringDeserializer(), new StringDeserializer())) {
                long seen = consumer.endOffsets(List.of(beats)).get(beats);
                Lines.until("one more heartbeat", () -> consumer.endOffsets(List.of(beats)).get(beats) > seen);
            }
        }

        private void internalTopics() throws Exception {
            var syncs = "mm2-offset-syncs." + target + ".internal";
            Lines.same(configs(from, syncs).get("cleanup.policy"), "compact", "policy of " + syncs);
            var checkpoints = source + ".checkpoints.internal";
            Lines.same(configs(to, checkpoints).get("cleanup.policy"), "compact", "policy of " + checkpoints);
        }
    }
}
