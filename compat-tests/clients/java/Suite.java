import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Random;
import java.util.Set;
import java.util.TreeSet;
import java.util.UUID;
import java.util.concurrent.CyclicBarrier;
import java.util.concurrent.Future;
import java.util.concurrent.FutureTask;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.ConsumerGroupDescription;
import org.apache.kafka.clients.admin.ListGroupsOptions;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.consumer.OffsetAndTimestamp;
import org.apache.kafka.clients.consumer.SubscriptionPattern;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.GroupState;
import org.apache.kafka.common.GroupType;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.InvalidProducerEpochException;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** The Java client against a broker. Usage: Suite HOST:PORT */
public final class Suite {
    private static final int RECORDS = 400;
    private static final Duration PATIENCE = Duration.ofSeconds(60);
    private static final List<String> CODECS = List.of("none", "gzip", "snappy", "lz4", "zstd");
    private static final String RUN = UUID.randomUUID().toString().substring(0, 8);
    private static final long BEGAN_MS = System.currentTimeMillis() - RECORDS * 1000L;

    private static final Map<String, Object> CLASSIC = Map.of("heartbeat.interval.ms", 500);
    /** The group protocol in which the broker assigns (KIP-848). */
    private static final Map<String, Object> NEW = Map.of("group.protocol", "consumer");

    private final String bootstrap;
    private final Admin admin;
    private final BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
    private boolean failed;

    private Suite(String bootstrap) {
        this.bootstrap = bootstrap;
        this.admin = Admin.create(Map.of("bootstrap.servers", bootstrap));
    }

    interface Work {
        void run() throws Exception;
    }

    record Sent(byte[] key, byte[] value, List<Header> headers, long timestampMs) {}

    public static void main(String[] arguments) throws Exception {
        var suite = new Suite(arguments[arguments.length - 1]);
        suite.run();
        System.out.flush();
        System.exit(suite.failed ? 1 : 0);
    }

    private void run() throws Exception {
        compactionBegins();
        for (String codec : CODECS) {
            create(codec, 1);
            line("produce-consume-" + codec, () -> codec(codec));
        }
        line("consume-from-offset", () -> {
            var got = read("gzip", RECORDS - 123, 123);
            same(got.get(0).offset(), 123L, "first offset");
            compare(got.get(0), made(123));
        });
        line("consume-from-time", this::fromTime);
        line("large-value", this::large);
        line("group-rest-after-consumer-restart", () -> groupRest("rest", CLASSIC, () -> {}));
        line("group-rest-after-broker-restart", () -> groupRest("broker", CLASSIC, this::restartBroker));
        line("group-of-two-shares", () -> groupShared("shared", List.of(CLASSIC, CLASSIC)));
        line("new-group-rest-after-consumer-restart", () -> groupRest("new-rest", NEW, () -> {}));
        line("new-group-rest-after-broker-restart", () -> groupRest("new-broker", NEW, this::restartBroker));
        line("new-group-of-two-shares", () -> groupShared("new-shared", List.of(NEW, NEW)));
        line("new-group-by-pattern", this::newGroupByPattern);
        line("new-group-is-described", this::newGroupIsDescribed);
        line("group-configs", this::groupConfigs);
        line("idempotent-over-broker-restart", this::idempotent);
        line("transactions-commit-and-abort", this::transactions);
        line("transactions-fence-the-producer-before", this::fenced);
        line("consume-transform-produce-exactly-once", () -> exactlyOnce("once", () -> {}));
        line("exactly-once-over-broker-restart", () -> exactlyOnce("again", this::restartBroker));
        line("records-survive-broker-restart", () -> {
            for (String codec : CODECS) {
                for (var record : read(codec, RECORDS, 0)) {
                    compare(record, made((int) record.offset()));
                }
            }
        });
        line("admin", this::adminRound);
        line("compaction-keeps-the-newest", this::compacted);
    }

    private void line(String name, Work work) {
        long began = System.currentTimeMillis();
        try {
            work.run();
            System.out.printf("ok %s %.1fs%n", name, (System.currentTimeMillis() - began) / 1000.0);
        } catch (Throwable problem) {
            failed = true;
            problem.printStackTrace();
            System.out.println("FAIL " + name + ": " + problem.toString().replace('\n', ' '));
        }
        System.out.flush();
    }

    private static void same(Object got, Object wanted, String what) {
        if (!wanted.equals(got)) {
            throw new AssertionError(what + ": wanted " + wanted + ", got " + got);
        }
    }

    private static String topic(String name) {
        return "java-" + RUN + "-" + name;
    }

    private void create(String name, int partitions) throws Exception {
        admin.createTopics(List.of(new NewTopic(topic(name), partitions, (short) 1))).all().get();
    }

    private void restartBroker() throws Exception {
        System.out.println("RESTART");
        System.out.flush();
        same(input.readLine(), "RESTARTED", "the driver's answer");
    }

    /** The record of that number: every byte value, empty and null ones among them. */
    private static Sent made(int i) {
        byte[] key = i % 7 == 0 ? null : ("key-" + i).getBytes();
        byte[] value = new byte[i % 300];
        for (int j = 0; j < value.length; j++) {
            value[j] = (byte) (i * 31 + j * j);
        }
        if (i % 50 == 11) {
            value = null;
        }
        List<Header> headers = i % 3 != 0 ? List.of() : List.of(new RecordHeader("h", ("" + i).getBytes()),
                new RecordHeader("h", "again".getBytes()), new RecordHeader("null", (byte[]) null));
        return new Sent(key, value, headers, BEGAN_MS + i * 1000L);
    }

    private static void compare(ConsumerRecord<byte[], byte[]> got, Sent wanted) {
        String where = "record " + got.offset();
        same(Arrays.equals(got.key(), wanted.key), true, "key of " + where);
        same(Arrays.equals(got.value(), wanted.value), true, "value of " + where);
        same(List.of(got.headers().toArray()), wanted.headers, "headers of " + where);
        same(got.timestamp(), wanted.timestampMs, "timestamp of " + where);
    }

    private List<RecordMetadata> produce(String name, int partition, List<Sent> rows, Map<String, ?> config) throws Exception {
        var properties = new Properties();
        properties.put("bootstrap.servers", bootstrap);
        properties.put("linger.ms", 20);
        properties.putAll(config);
        try (var producer = new KafkaProducer<>(properties, new ByteArraySerializer(), new ByteArraySerializer())) {
            List<Future<RecordMetadata>> sent = new ArrayList<>();
            for (Sent row : rows) {
                sent.add(producer.send(new ProducerRecord<>(topic(name), partition, row.timestampMs, row.key, row.value, row.headers)));
            }
            producer.flush();
            List<RecordMetadata> acknowledged = new ArrayList<>();
            for (var future : sent) {
                acknowledged.add(future.get());
            }
            return acknowledged;
        }
    }

    private KafkaConsumer<byte[], byte[]> consumer(String group, Map<String, Object> config) {
        var properties = new Properties();
        properties.put("bootstrap.servers", bootstrap);
        properties.put("auto.offset.reset", "earliest");
        properties.put("enable.auto.commit", false);
        properties.putAll(config);
        if (group != null) {
            properties.put("group.id", group);
        }
        return new KafkaConsumer<>(properties, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    private static List<ConsumerRecord<byte[], byte[]>> take(KafkaConsumer<byte[], byte[]> consumer, int count) {
        List<ConsumerRecord<byte[], byte[]>> got = new ArrayList<>();
        long end = System.currentTimeMillis() + PATIENCE.toMillis();
        while (got.size() < count && System.currentTimeMillis() < end) {
            consumer.poll(Duration.ofMillis(500)).forEach(got::add);
        }
        if (got.size() < count) {
            throw new AssertionError("only " + got.size() + " of " + count + " records within the time limit");
        }
        return got;
    }

    private List<ConsumerRecord<byte[], byte[]>> read(String name, int count, long offset) {
        try (var consumer = consumer(null, CLASSIC)) {
            var partition = new TopicPartition(topic(name), 0);
            consumer.assign(List.of(partition));
            consumer.seek(partition, offset);
            var got = take(consumer, count);
            same(got.size(), count, "records");
            return got;
        }
    }

    private void codec(String codec) throws Exception {
        List<Sent> rows = IntStream.range(0, RECORDS).mapToObj(Suite::made).toList();
        var acknowledged = produce(codec, 0, rows, Map.of("compression.type", codec, "acks", "all"));
        for (int i = 0; i < RECORDS; i++) {
            same(acknowledged.get(i).offset(), (long) i, "acknowledged offset");
        }
        var got = read(codec, RECORDS, 0);
        for (int i = 0; i < RECORDS; i++) {
            same(got.get(i).offset(), (long) i, "offset");
            compare(got.get(i), rows.get(i));
        }
    }

    private void fromTime() {
        try (var consumer = consumer(null, CLASSIC)) {
            var partition = new TopicPartition(topic("zstd"), 0);
            long at = BEGAN_MS + 200_000;
            for (long[] pair : new long[][] {{at, 200}, {at - 1, 200}, {at + 1, 201}, {0, 0}}) {
                OffsetAndTimestamp found = consumer.offsetsForTimes(Map.of(partition, pair[0])).get(partition);
                same(found.offset(), pair[1], "offset at " + pair[0]);
            }
            same(consumer.offsetsForTimes(Map.of(partition, at * 2)).get(partition) == null, true, "nothing after the end");
            same(consumer.beginningOffsets(List.of(partition)).get(partition), 0L, "beginning");
            same(consumer.endOffsets(List.of(partition)).get(partition), (long) RECORDS, "end");
        }
    }

    private void large() throws Exception {
        create("large", 1);
        byte[] value = new byte[900_000];
        new Random(7).nextBytes(value);
        produce("large", 0, List.of(new Sent(null, value, List.of(), BEGAN_MS)), Map.of("max.request.size", 1_000_000));
        same(Arrays.equals(read("large", 1, 0).get(0).value(), value), true, "every byte of a large value");
    }

    private Set<String> fill(String name, int partitions) throws Exception {
        create(name, partitions);
        Set<String> all = new HashSet<>();
        for (int p = 0; p < partitions; p++) {
            List<Sent> rows = new ArrayList<>();
            for (int i = 0; i < 100; i++) {
                all.add(p + "-" + i);
                rows.add(new Sent(null, (p + "-" + i).getBytes(), List.of(), BEGAN_MS));
            }
            produce(name, p, rows, Map.of());
        }
        return all;
    }

    private static List<String> values(List<ConsumerRecord<byte[], byte[]>> records) {
        return records.stream().map(r -> new String(r.value())).collect(Collectors.toCollection(ArrayList::new));
    }

    private void groupRest(String name, Map<String, Object> config, Work between) throws Exception {
        Set<String> all = fill(name, 3);
        String group = "g-" + name + "-" + RUN;
        List<String> got;
        try (var first = consumer(group, config)) {
            first.subscribe(List.of(topic(name)));
            got = values(take(first, 100));
            first.commitSync();
        }
        between.run();
        try (var second = consumer(group, config)) {
            second.subscribe(List.of(topic(name)));
            got.addAll(values(take(second, 300 - got.size())));
            same(second.poll(Duration.ofSeconds(1)).count(), 0, "records more than the rest");
            second.commitSync();
        }
        same(got.size(), 300, "records read, none twice");
        same(new HashSet<>(got), all, "both halves together");
    }

    private KafkaProducer<byte[], byte[]> transactional(String id) {
        var properties = new Properties();
        properties.put("bootstrap.servers", bootstrap);
        properties.put("transactional.id", topic(id));
        properties.put("transaction.timeout.ms", 30_000);
        var producer = new KafkaProducer<>(properties, new ByteArraySerializer(), new ByteArraySerializer());
        producer.initTransactions();
        return producer;
    }

    private void send(KafkaProducer<byte[], byte[]> producer, String name, String value) {
        producer.send(new ProducerRecord<>(topic(name), 0, null, value.getBytes()));
    }

    private KafkaConsumer<byte[], byte[]> consumer(String group, String isolation) {
        var properties = new Properties();
        properties.put("bootstrap.servers", bootstrap);
        properties.put("auto.offset.reset", "earliest");
        properties.put("enable.auto.commit", false);
        properties.put("isolation.level", isolation);
        properties.put("max.poll.records", 20);
        // A member whose broker is away does not leave; the next one waits for the end of its session.
        properties.put("session.timeout.ms", 10_000);
        if (group != null) {
            properties.put("group.id", group);
        }
        return new KafkaConsumer<>(properties, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    /** Values of a topic's first partition up to its end, as a reader of that isolation sees them. */
    private List<String> all(String name, String isolation) {
        return values(records(name, isolation));
    }

    private List<ConsumerRecord<byte[], byte[]>> records(String name, String isolation) {
        List<ConsumerRecord<byte[], byte[]>> got = new ArrayList<>();
        try (var consumer = consumer(null, isolation)) {
            var partition = new TopicPartition(topic(name), 0);
            consumer.assign(List.of(partition));
            consumer.seekToBeginning(List.of(partition));
            long end = consumer.endOffsets(List.of(partition)).get(partition);
            long limit = System.currentTimeMillis() + PATIENCE.toMillis();
            while (consumer.position(partition) < end) {
                consumer.poll(Duration.ofMillis(200)).forEach(got::add);
                if (System.currentTimeMillis() > limit) {
                    throw new AssertionError("at " + consumer.position(partition) + " of " + end + " within the time limit");
                }
            }
        }
        return got;
    }

    /** Records that are on their way while the broker restarts are there once, in their order. */
    private void idempotent() throws Exception {
        create("idempotent", 1);
        var properties = new Properties();
        properties.put("bootstrap.servers", bootstrap);
        var restart = new FutureTask<Void>(() -> {
            restartBroker();
            return null;
        });
        try (var producer = new KafkaProducer<>(properties, new ByteArraySerializer(), new ByteArraySerializer())) {
            List<Future<RecordMetadata>> sent = new ArrayList<>();
            for (int n = 0; n < 300; n++) {
                sent.add(producer.send(new ProducerRecord<>(topic("idempotent"), 0, null, ("" + n).getBytes())));
                if (n == 100) {
                    new Thread(restart).start();
                }
                Thread.sleep(10);
            }
            for (int n = 0; n < 300; n++) {
                same(sent.get(n).get().offset(), (long) n, "acknowledged offset");
            }
        }
        restart.get();
        same(all("idempotent", "read_uncommitted"), IntStream.range(0, 300).mapToObj(n -> "" + n).toList(), "values");
    }

    private static final int KEYS = 10;

    /** Of each of ten keys thirty records; the newest of one key is a tombstone. */
    private static List<Sent> superseded() {
        return IntStream.range(0, 30 * KEYS).mapToObj(n -> new Sent(("k" + n % KEYS).getBytes(),
                n == 30 * KEYS - 4 ? null : ("value " + n).getBytes(), List.of(), System.currentTimeMillis())).toList();
    }

    private void compactionBegins() throws Exception {
        var configs = Map.of("cleanup.policy", "compact", "segment.ms", "500", "min.cleanable.dirty.ratio", "0.01");
        admin.createTopics(List.of(new NewTopic(topic("compacted"), 1, (short) 1).configs(configs))).all().get();
        produce("compacted", 0, superseded(), Map.of());
    }

    /** Only the newest record of each key is left in the end, where it was. */
    private void compacted() throws Exception {
        var newest = superseded().subList(29 * KEYS, 30 * KEYS);
        until(() -> {
            Thread.sleep(600);
            // With it the segment before closes.
            produce("compacted", 0, List.of(new Sent("roll".getBytes(), new byte[0], List.of(), System.currentTimeMillis())), Map.of());
            var left = records("compacted", "read_uncommitted").stream().filter(r -> !new String(r.key()).equals("roll")).toList();
            for (int n = 0; n < KEYS; n++) {
                var record = left.get(left.size() - KEYS + n);
                same(record.offset(), 29L * KEYS + n, "offset");
                same(Arrays.equals(record.key(), newest.get(n).key), true, "key at " + record.offset());
                same(Arrays.equals(record.value(), newest.get(n).value), true, "value at " + record.offset());
            }
            return left.size() == KEYS;
        }, "only the newest of each key is left");
    }

    private void transactions() throws Exception {
        create("txn", 1);
        List<String> sent = new ArrayList<>();
        List<String> committed = new ArrayList<>();
        try (var producer = transactional("txn")) {
            for (int round = 0; round < 6; round++) {
                producer.beginTransaction();
                for (int n = 0; n < 10; n++) {
                    String value = round + "-" + n;
                    send(producer, "txn", value);
                    sent.add(value);
                    if (round % 2 == 0) {
                        committed.add(value);
                    }
                }
                producer.flush();
                if (round % 2 == 0) {
                    producer.commitTransaction();
                } else {
                    producer.abortTransaction();
                }
            }
        }
        // Markers follow the answer: whoever begins a transaction waits for them.
        try (var next = transactional("txn")) {
            same(all("txn", "read_committed"), committed, "what is committed");
            same(all("txn", "read_uncommitted"), sent, "everything");
        }
    }

    private void fenced() throws Exception {
        create("fenced", 1);
        try (var first = transactional("fenced")) {
            first.beginTransaction();
            send(first, "fenced", "first");
            first.flush();
            try (var second = transactional("fenced")) {
                second.beginTransaction();
                send(second, "fenced", "second");
                second.commitTransaction();
            }
            try {
                first.commitTransaction();
                throw new AssertionError("the first producer was not fenced");
            } catch (ProducerFencedException | InvalidProducerEpochException expected) {
                // As it should be.
            }
        }
        try (var next = transactional("fenced")) {
            same(all("fenced", "read_committed"), List.of("second"), "what is committed");
        }
    }

    /** Copies a topic within transactions; some are aborted, and one is left open by a producer that is replaced. */
    private void exactlyOnce(String name, Work between) throws Exception {
        Set<String> everything = fill(name + "-in", 3);
        create(name + "-out", 1);
        int copied = 0;
        for (int instance = 0; copied < everything.size(); instance++) {
            same(instance < 20, true, "few instances, not " + instance + " for " + copied + " records");
            var producer = transactional("copy-" + name);
            try (var consumer = consumer("g-" + name + "-" + RUN, "read_committed")) {
                consumer.subscribe(List.of(topic(name + "-in")));
                for (int transaction = 0; copied < everything.size(); transaction++) {
                    producer.beginTransaction();
                    var batch = some(consumer);
                    for (String value : values(batch)) {
                        send(producer, name + "-out", value);
                    }
                    if (instance == 0 && transaction == 1) {
                        // It dies with its transaction open.
                        producer.flush();
                        between.run();
                        break;
                    }
                    var offsets = new HashMap<TopicPartition, OffsetAndMetadata>();
                    for (var partition : consumer.assignment()) {
                        offsets.put(partition, new OffsetAndMetadata(consumer.position(partition)));
                    }
                    producer.sendOffsetsToTransaction(offsets, consumer.groupMetadata());
                    if (transaction % 4 == 2) {
                        producer.abortTransaction();
                        break;
                    }
                    producer.commitTransaction();
                    copied += batch.size();
                }
            } finally {
                producer.close(Duration.ZERO);
            }
        }
        try (var next = transactional("copy-" + name)) {
            var got = all(name + "-out", "read_committed");
            same(got.size(), everything.size(), "records copied, none twice");
            same(new HashSet<>(got), everything, "what was copied");
        }
    }

    private static List<ConsumerRecord<byte[], byte[]>> some(KafkaConsumer<byte[], byte[]> consumer) {
        List<ConsumerRecord<byte[], byte[]>> got = new ArrayList<>();
        long end = System.currentTimeMillis() + PATIENCE.toMillis();
        while (got.isEmpty()) {
            consumer.poll(Duration.ofMillis(200)).forEach(got::add);
            same(System.currentTimeMillis() < end, true, "a record within the time limit");
        }
        return got;
    }

    private void groupShared(String name, List<Map<String, Object>> configs) throws Exception {
        Set<String> all = fill(name, 4);
        List<Set<Integer>> assigned = List.of(new TreeSet<>(), new TreeSet<>());
        List<String> got = new ArrayList<>();
        List<Throwable> problems = new ArrayList<>();
        var bothRead = new CyclicBarrier(2);
        List<Thread> members = IntStream.range(0, 2).mapToObj(me -> new Thread(() -> {
            try (var consumer = consumer("g-" + name + "-" + RUN, configs.get(me))) {
                consumer.subscribe(List.of(topic(name)));
                // Both members are there before either reads.
                long end = System.currentTimeMillis() + PATIENCE.toMillis();
                while (!shareAll(assigned)) {
                    consumer.poll(Duration.ofMillis(100));
                    note(assigned, me, consumer.assignment());
                    if (System.currentTimeMillis() > end) {
                        throw new AssertionError("the members never shared: " + assigned);
                    }
                }
                consumer.seekToBeginning(consumer.assignment());
                var mine = values(take(consumer, 100 * consumer.assignment().size()));
                synchronized (got) {
                    got.addAll(mine);
                }
                // Who leaves early gives its partitions to the one that still reads.
                bothRead.await(PATIENCE.toSeconds(), TimeUnit.SECONDS);
            } catch (Throwable problem) {
                synchronized (problems) {
                    problems.add(problem);
                }
            }
        })).toList();
        members.forEach(Thread::start);
        for (Thread member : members) {
            member.join();
        }
        same(problems, List.of(), "problems of the members");
        same(got.size(), 400, "records read");
        same(new HashSet<>(got), all, "what both read together");
    }

    private static boolean shareAll(List<Set<Integer>> assigned) {
        synchronized (assigned) {
            return assigned.stream().noneMatch(Set::isEmpty) && assigned.stream().mapToInt(Set::size).sum() == 4;
        }
    }

    private static void note(List<Set<Integer>> assigned, int me, Collection<TopicPartition> partitions) {
        synchronized (assigned) {
            assigned.get(me).clear();
            partitions.forEach(p -> assigned.get(me).add(p.partition()));
        }
    }

    interface Check {
        boolean holds() throws Exception;
    }

    private static void until(Check check, String what) throws Exception {
        long end = System.currentTimeMillis() + PATIENCE.toMillis();
        while (!check.holds()) {
            if (System.currentTimeMillis() > end) {
                throw new AssertionError("never: " + what);
            }
        }
    }

    private void newGroupByPattern() throws Exception {
        create("pattern-a", 1);
        try (var consumer = consumer("g-pattern-" + RUN, NEW)) {
            consumer.subscribe(new SubscriptionPattern("java-" + RUN + "-pattern-.*"));
            until(() -> reads(consumer, 1), "the topic that matches is read");
            create("pattern-b", 2);
            until(() -> reads(consumer, 3), "a topic that comes to match is read");
            admin.deleteTopics(List.of(topic("pattern-a"))).all().get();
            until(() -> reads(consumer, 2), "a topic that is gone is read no more");
        }
    }

    private static boolean reads(KafkaConsumer<byte[], byte[]> consumer, int partitions) {
        consumer.poll(Duration.ofMillis(100));
        return consumer.assignment().size() == partitions;
    }

    private void newGroupIsDescribed() throws Exception {
        create("described", 3);
        String group = "g-described-" + RUN;
        Map<String, Object> config = Map.of("group.protocol", "consumer", "group.instance.id", "i", "group.remote.assignor", "uniform");
        try (var consumer = consumer(group, config)) {
            consumer.subscribe(List.of(topic("described")));
            until(() -> reads(consumer, 3) && describe(group).groupState() == GroupState.STABLE, "stable");
            var row = describe(group);
            same(row.type(), GroupType.CONSUMER, "type");
            same(row.partitionAssignor(), "uniform", "assignor");
            same(row.members().size(), 1, "members");
            var member = row.members().iterator().next();
            same(member.groupInstanceId().get(), "i", "instance id");
            same(member.assignment().topicPartitions().size(), 3, "assignment");
            same(member.targetAssignment().get().topicPartitions().size(), 3, "target");
            var ofType = admin.listGroups(new ListGroupsOptions().withTypes(Set.of(GroupType.CONSUMER))).all().get();
            same(ofType.stream().anyMatch(g -> g.groupId().equals(group)), true, "the group among those of its type");
            var others = admin.listGroups(new ListGroupsOptions().withTypes(Set.of(GroupType.CLASSIC))).all().get();
            same(others.stream().anyMatch(g -> g.groupId().equals(group)), false, "the group among the others");
        }
        // A static member is away: it is its group's until its session ends.
        same(describe(group).members().size(), 1, "members while it is away");
    }

    private ConsumerGroupDescription describe(String group) throws Exception {
        return admin.describeConsumerGroups(List.of(group)).all().get().get(group);
    }

    private void groupConfigs() throws Exception {
        var group = new ConfigResource(ConfigResource.Type.GROUP, "g-configs-" + RUN);
        String name = "consumer.session.timeout.ms";
        same(admin.describeConfigs(List.of(group)).all().get().get(group).get(name).value(), "45000", "the default");
        var set = new AlterConfigOp(new ConfigEntry(name, "50000"), AlterConfigOp.OpType.SET);
        admin.incrementalAlterConfigs(Map.of(group, List.of(set))).all().get();
        var entry = admin.describeConfigs(List.of(group)).all().get().get(group).get(name);
        same(entry.value(), "50000", "the value that was set");
        same(entry.source(), ConfigEntry.ConfigSource.DYNAMIC_GROUP_CONFIG, "its source");
        var wrong = new AlterConfigOp(new ConfigEntry("no.such.config", "1"), AlterConfigOp.OpType.SET);
        try {
            admin.incrementalAlterConfigs(Map.of(group, List.of(wrong))).all().get();
            throw new AssertionError("a config that does not exist was set");
        } catch (java.util.concurrent.ExecutionException refused) {
            same(refused.getCause().getClass().getSimpleName(), "InvalidConfigurationException", "the refusal");
        }
    }

    private void adminRound() throws Exception {
        create("admin", 2);
        admin.createPartitions(Map.of(topic("admin"), NewPartitions.increaseTo(5))).all().get();
        produce("admin", 4, IntStream.range(0, 10).mapToObj(Suite::made).toList(), Map.of());
        var partition = new TopicPartition(topic("admin"), 4);
        same(admin.listOffsets(Map.of(partition, OffsetSpec.latest())).partitionResult(partition).get().offset(), 10L, "latest");
        var deleted = admin.deleteRecords(Map.of(partition, RecordsToDelete.beforeOffset(4))).lowWatermarks();
        same(deleted.get(partition).get().lowWatermark(), 4L, "low watermark");
        same(admin.listOffsets(Map.of(partition, OffsetSpec.earliest())).partitionResult(partition).get().offset(), 4L, "earliest");
        var resource = new ConfigResource(ConfigResource.Type.TOPIC, topic("admin"));
        same(admin.describeConfigs(List.of(resource)).all().get().get(resource).get("retention.ms") != null, true, "retention.ms");
        same(admin.describeTopics(List.of(topic("admin"))).allTopicNames().get().get(topic("admin")).partitions().size(), 5, "partitions");
        same(admin.describeCluster().nodes().get().isEmpty(), false, "no nodes");
        admin.deleteTopics(List.of(topic("admin"))).all().get();
    }
}
