import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.UUID;
import java.util.stream.IntStream;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.StringDeserializer;

/**
 * Kafka Connect against a broker: a file to a topic, exactly once, and the topic to a file, while workers, connectors and
 * the broker stop and start. Usage: Connect HOST:PORT
 *
 * RANGEWAY_COMPAT_CONNECT_LINES: lines of text per step.
 */
public final class Connect {
    private static final int LINES = Integer.parseInt(System.getenv().getOrDefault("RANGEWAY_COMPAT_CONNECT_LINES", "1000"));
    private static final String RUN = "connect-" + UUID.randomUUID().toString().substring(0, 8);
    private static final String TOPIC = RUN + "-lines";
    private static final String LETTERS = RUN + "-letters";

    private final String bootstrap;
    private final Admin admin;
    private final Path home;
    private final Path in;
    private final Path out;
    private final List<String> written = new ArrayList<>();
    private final Worker one;
    private final Worker two;
    /** The one that is not killed. */
    private Worker left;

    private Connect(String bootstrap) throws Exception {
        this.bootstrap = bootstrap;
        this.admin = Admin.create(Map.of("bootstrap.servers", bootstrap));
        this.home = Files.createTempDirectory("connect");
        this.in = home.resolve("in");
        this.out = home.resolve("out");
        this.one = Worker.distributed(home, "one", bootstrap, RUN);
        this.two = Worker.distributed(home, "two", bootstrap, RUN);
        this.left = two;
    }

    public static void main(String[] arguments) throws Exception {
        var suite = new Connect(arguments[arguments.length - 1]);
        suite.run();
        suite.delete();
        Lines.end();
    }

    private void run() throws Exception {
        line("internal-topics", this::internalTopics);
        line("file-to-file", this::fileToFile);
        line("topic-is-created-with-configs", this::created);
        line("rest-after-worker-restart", this::workerRestart);
        line("rest-after-broker-restart", this::brokerRestart);
        line("offsets-of-a-sink-deleted", this::sinkOffsets);
        line("offsets-of-a-source-altered", this::sourceOffsets);
        line("dead-letters", this::deadLetters);
        line("two-workers-share", this::share);
        line("source-exactly-once-over-killed-worker", this::killed);
        line("connectors-deleted", this::deleted);
        left.kill();
        line("standalone-rest-after-restart", this::standalone);
    }

    private void line(String name, Lines.Work work) {
        Lines.line(name, () -> {
            try {
                work.run();
            } catch (Throwable problem) {
                one.show();
                two.show();
                throw problem;
            }
        });
    }

    private void internalTopics() throws Exception {
        one.start();
        for (var topic : Map.of("-config", 1, "-offset", 4, "-status", 2).entrySet()) {
            String name = RUN + topic.getKey();
            var partitions = admin.describeTopics(List.of(name)).allTopicNames().get().get(name).partitions();
            Lines.same(partitions.size(), topic.getValue(), "partitions of " + name);
            Lines.same(config(name, "cleanup.policy"), "compact", "policy of " + name);
        }
    }

    private String config(String topic, String key) throws Exception {
        var resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        return admin.describeConfigs(List.of(resource)).all().get().get(resource).get(key).value();
    }

    private Map<String, String> source(String name, Path file, String topic) {
        return new HashMap<>(Map.of("name", name, "connector.class", "org.apache.kafka.connect.file.FileStreamSourceConnector",
            "tasks.max", "1", "file", file.toString(), "topic", topic, "batch.size", "50",
            "topic.creation.default.partitions", "1", "topic.creation.default.replication.factor", "1"));
    }

    private Map<String, String> sink(String name, String topic, Path file) {
        return new HashMap<>(Map.of("name", name, "connector.class", "org.apache.kafka.connect.file.FileStreamSinkConnector",
            "tasks.max", "1", "topics", topic, "file", file.toString()));
    }

    private void fileToFile() throws Exception {
        write();
        var source = source("source", in, TOPIC);
        source.putAll(Map.of("exactly.once.support", "required", "topic.creation.default.compression.type", "lz4",
            "topic.creation.default.retention.ms", "7200000", "topic.creation.default.min.insync.replicas", "1"));
        one.put(source);
        one.put(sink("sink", TOPIC, out));
        one.state("source", "RUNNING", 1);
        one.state("sink", "RUNNING", 1);
        equal();
    }

    private void created() throws Exception {
        Lines.same(config(TOPIC, "compression.type"), "lz4", "compression");
        Lines.same(config(TOPIC, "retention.ms"), "7200000", "retention");
    }

    /** Stopped as it should be, it has said where it stood. */
    private void workerRestart() throws Exception {
        write();
        one.stop();
        write();
        one.start();
        write();
        equal();
    }

    /** The source is exact; a sink may repeat what it had not said to be done. */
    private void brokerRestart() throws Exception {
        write();
        Lines.restartBroker();
        write();
        produced(written);
        Lines.until("the sink has all", () -> new LinkedHashSet<>(Files.readAllLines(out)).equals(new LinkedHashSet<>(written)));
        one.state("source", "RUNNING", 1);
        one.state("sink", "RUNNING", 1);
    }

    private void sinkOffsets() throws Exception {
        String path = "/connectors/sink/offsets";
        var records = read(TOPIC);
        // Behind it is the marker of its transaction, which a sink does not count.
        long next = records.get(records.size() - 1).offset() + 1;
        Lines.until("the sink's offset is behind the last record", () ->
            one.call("GET", path, null).at("/offsets/0/offset/kafka_offset").asLong() == next);
        one.must("PUT", "/connectors/sink/stop", null);
        one.state("sink", "STOPPED", 0);
        one.must("DELETE", path, null);
        Lines.same(one.call("GET", path, null).at("/offsets").size(), 0, "offsets that are left");
        Files.delete(out);
        one.must("PUT", "/connectors/sink/resume", null);
        equal();
    }

    /** Back to the beginning of the file: all of it comes again. */
    private void sourceOffsets() throws Exception {
        String path = "/connectors/source/offsets";
        Lines.until("the source's offset is the file's end", () ->
            one.call("GET", path, null).at("/offsets/0/offset/position").asLong() == Files.size(in));
        one.must("PUT", "/connectors/source/stop", null);
        one.state("source", "STOPPED", 0);
        one.must("PATCH", path, Map.of("offsets", List.of(Map.of("partition", Map.of("filename", in.toString()), "offset", Map.of("position", 0)))));
        Lines.same(one.call("GET", path, null).at("/offsets/0/offset/position").asLong(-1), 0L, "offset that was set");
        one.must("PUT", "/connectors/source/resume", null);
        var twice = new ArrayList<>(written);
        twice.addAll(written);
        produced(twice);
        Lines.until("the sink has all twice", () -> Files.exists(out) && Files.readAllLines(out).equals(twice));
    }

    /** Text is no JSON; each record comes to the topic for such, with where it is from. */
    private void deadLetters() throws Exception {
        var sink = sink("refuses", TOPIC, home.resolve("refused"));
        sink.putAll(Map.of("value.converter", "org.apache.kafka.connect.json.JsonConverter", "errors.tolerance", "all",
            "errors.deadletterqueue.topic.name", LETTERS, "errors.deadletterqueue.topic.replication.factor", "1",
            "errors.deadletterqueue.context.headers.enable", "true"));
        one.put(sink);
        int wanted = written.size() * 2;
        Lines.until("all records are dead letters", () -> read(LETTERS).size() >= wanted);
        var letters = read(LETTERS);
        Lines.same(letters.size(), wanted, "dead letters");
        Lines.same(new String(letters.get(0).headers().lastHeader("__connect.errors.topic").value()), TOPIC, "topic that a letter names");
        one.must("DELETE", "/connectors/refuses", null);
    }

    private void share() throws Exception {
        two.start();
        Lines.until("both have work", () -> {
            Set<String> workers = new HashSet<>();
            for (String name : List.of("source", "sink")) {
                var status = two.call("GET", "/connectors/" + name + "/status", null);
                workers.add(status.at("/connector/worker_id").asText());
                status.at("/tasks").forEach(task -> workers.add(task.at("/worker_id").asText()));
            }
            return workers.equals(Set.of(one.id(), two.id()));
        });
        write();
        var twice = new ArrayList<>(written.subList(0, written.size() - LINES));
        twice.addAll(written);
        produced(twice);
    }

    /** The worker of the source, in the middle of a file, of which the other one copies the rest. Nothing is missing or twice. */
    private void killed() throws Exception {
        String topic = RUN + "-killed";
        Path file = home.resolve("killed");
        Path copy = home.resolve("killed.out");
        var lines = new ArrayList<String>();
        append(file, lines, LINES * 5, "before its worker is killed");
        two.put(source("killed", file, topic));
        two.put(sink("killed-sink", topic, copy));
        Lines.until("some of it is copied", () -> read(topic).size() > 0);
        Lines.until("its worker is known", () -> Set.of(one.id(), two.id()).contains(two.owner("killed")));
        left = two.owner("killed").equals(one.id()) ? two : one;
        (left == one ? two : one).kill();
        append(file, lines, LINES, "after its worker was killed");
        copied(topic, lines);
        Lines.until("the sink has all", () -> Files.exists(copy) && new LinkedHashSet<>(Files.readAllLines(copy)).equals(new LinkedHashSet<>(lines)));
        // The producers of an older generation of tasks are fenced.
        var changed = source("killed", file, topic);
        changed.put("batch.size", "20");
        left.put(changed);
        append(file, lines, LINES, "with another config");
        copied(topic, lines);
    }

    private static void append(Path file, List<String> lines, int count, String when) throws Exception {
        var more = IntStream.range(0, count).mapToObj(n -> "line " + n + " " + when).toList();
        Files.write(file, more, StandardOpenOption.CREATE, StandardOpenOption.APPEND);
        lines.addAll(more);
    }

    private void deleted() throws Exception {
        for (String name : List.of("source", "sink", "killed", "killed-sink")) {
            left.must("DELETE", "/connectors/" + name, null);
        }
        Lines.until("no connector is left", () -> left.call("GET", "/connectors", null).size() == 0);
        Lines.until("the sinks' groups have no members", () -> admin.describeConsumerGroups(List.of("connect-sink", "connect-killed-sink"))
            .all().get().values().stream().allMatch(group -> group.members().isEmpty()));
        admin.deleteConsumerGroups(List.of("connect-sink", "connect-killed-sink")).all().get();
    }

    private void standalone() throws Exception {
        Path from = home.resolve("alone.in");
        Path to = home.resolve("alone.out");
        var lines = IntStream.range(0, LINES).mapToObj(n -> "line " + n + " alone").toList();
        Files.write(from, lines);
        var worker = Worker.standalone(home, "alone", bootstrap, List.of(source("alone-source", from, RUN + "-alone"), sink("alone-sink", RUN + "-alone", to)));
        for (int part = 1; part <= 2; part++) {
            var wanted = part == 1 ? lines : IntStream.range(0, 2 * LINES).mapToObj(n -> "line " + n % LINES + " alone").toList();
            try {
                worker.start();
                Lines.until("the sink has part " + part, () -> Files.exists(to) && Files.readAllLines(to).equals(wanted));
                worker.stop();
            } catch (Throwable problem) {
                worker.show();
                throw problem;
            }
            Files.write(from, lines, StandardOpenOption.APPEND);
        }
    }

    /** ASCII, since the file source counts characters and skips bytes. */
    private void write() throws Exception {
        var lines = IntStream.range(written.size(), written.size() + LINES).mapToObj(n -> "line " + n + " " + "x".repeat(n % 90)).toList();
        Files.write(in, lines, StandardOpenOption.CREATE, StandardOpenOption.APPEND);
        written.addAll(lines);
    }

    /** The sink's file is the source's, byte by byte, and the topic has each line once. */
    private void equal() throws Exception {
        Lines.until("both files are the same", () -> Files.exists(out) && Files.mismatch(in, out) == -1);
        produced(written);
    }

    private void produced(List<String> wanted) throws Exception {
        copied(TOPIC, wanted);
    }

    /** The topic has these lines, each once and in order. */
    private void copied(String topic, List<String> wanted) throws Exception {
        Lines.until("all lines are in " + topic, () -> read(topic).size() >= wanted.size());
        Lines.same(read(topic).stream().map(ConsumerRecord::value).toList(), wanted, "what " + topic + " has");
    }

    private KafkaConsumer<String, String> consumer() {
        return new KafkaConsumer<>(Map.of("bootstrap.servers", bootstrap, "isolation.level", "read_committed",
            "allow.auto.create.topics", "false"), new StringDeserializer(), new StringDeserializer());
    }

    /** All committed records of a topic of one partition. */
    private List<ConsumerRecord<String, String>> read(String topic) {
        List<ConsumerRecord<String, String>> records = new ArrayList<>();
        try (var consumer = consumer()) {
            var part = new TopicPartition(topic, 0);
            consumer.assign(List.of(part));
            consumer.seekToBeginning(List.of(part));
            long end = consumer.endOffsets(List.of(part)).get(part);
            long deadline = System.currentTimeMillis() + Lines.PATIENCE_MS;
            while (consumer.position(part) < end) {
                Lines.holds(System.currentTimeMillis() < deadline, "the end of " + topic + " is reached");
                consumer.poll(Duration.ofMillis(200)).forEach(records::add);
            }
        }
        return records;
    }

    private void delete() throws Exception {
        try (var files = Files.list(home)) {
            for (var file : files.toList()) {
                Files.delete(file);
            }
        }
        Files.delete(home);
    }
}
