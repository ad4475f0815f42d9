import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.Set;
import java.util.TreeMap;
import java.util.UUID;
import java.util.concurrent.atomic.AtomicLong;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import java.util.stream.LongStream;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.Deserializer;
import org.apache.kafka.common.serialization.LongDeserializer;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StoreQueryParameters;
import org.apache.kafka.streams.processor.StateRestoreListener;
import org.apache.kafka.streams.state.QueryableStoreTypes;
import org.apache.kafka.tools.StreamsResetter;

/**
 * Kafka Streams against a broker: one word count, exactly once, that is stopped, killed, moved, and whose broker is
 * restarted; after each step its whole output must be a model's. Usage: Streams HOST:PORT
 *
 * RANGEWAY_COMPAT_STREAMS_LINES: lines of text per step.
 */
public final class Streams {
    private static final int PARTITIONS = 4;
    private static final int LINES = Integer.parseInt(System.getenv().getOrDefault("RANGEWAY_COMPAT_STREAMS_LINES", "600"));
    private static final int WORDS_PER_LINE = 6;
    private static final int WORDS = 60;
    private static final String APPLICATION = "streams-" + UUID.randomUUID().toString().substring(0, 8);
    private static final long BEGAN_MS = System.currentTimeMillis() - Duration.ofHours(6).toMillis();

    private final String bootstrap;
    private final Admin admin;
    private final Path home;
    private final Random random = new Random(5);
    /** What is produced so far: how often each word, and how often in each window of time. */
    private final Map<String, Long> counted = new TreeMap<>();
    private final Map<String, Long> windowed = new TreeMap<>();
    /** How often all that was produced before was counted anew. */
    private int produced;

    private Streams(String bootstrap) throws Exception {
        this.bootstrap = bootstrap;
        this.admin = Admin.create(Map.of("bootstrap.servers", bootstrap));
        this.home = Files.createTempDirectory("streams");
    }

    public static void main(String[] arguments) throws Exception {
        var suite = new Streams(arguments[arguments.length - 1]);
        suite.run();
        delete(suite.home);
        Lines.end();
    }

    private void run() throws Exception {
        create();
        Lines.line("word-count", this::counts);
        Lines.line("internal-topics", this::internalTopics);
        Lines.line("state-restored-from-changelog", this::restored);
        Lines.line("broker-restart", this::brokerRestart);
        Lines.line("killed-and-started-again", this::killed);
        Lines.line("second-instance-takes-over", this::takeOver);
        Lines.line("repartition-topic-is-purged", this::purged);
        Lines.line("windows", () -> Lines.same(windows(), windowed, "counts per window"));
        Lines.line("reset-and-counted-anew", this::reset);
    }

    private void create() throws Exception {
        var topics = new ArrayList<NewTopic>();
        for (String name : List.of(WordCount.lines(APPLICATION), WordCount.counts(APPLICATION), WordCount.windows(APPLICATION))) {
            topics.add(new NewTopic(name, PARTITIONS, (short) 1));
        }
        topics.add(new NewTopic(WordCount.names(APPLICATION), PARTITIONS, (short) 1).configs(Map.of("cleanup.policy", "compact")));
        admin.createTopics(topics).all().get();
        try (var producer = producer()) {
            for (int word = 0; word < WORDS; word++) {
                producer.send(new ProducerRecord<>(WordCount.names(APPLICATION), "word" + word, name("word" + word)));
            }
        }
    }

    private static String name(String word) {
        return "the-" + word;
    }

    private void counts() throws Exception {
        var streams = start("one");
        try {
            produce();
            judge(1);
        } finally {
            close(streams);
        }
    }

    /** Their sizes and configs are Streams' own; what it asked for is what there is. */
    private void internalTopics() throws Exception {
        internal("-" + WordCount.COUNTS + "-changelog", Map.of("cleanup.policy", "compact", "message.timestamp.type", "CreateTime"));
        internal("-per-window-changelog", Map.of("cleanup.policy", "compact,delete",
            "retention.ms", String.valueOf(Duration.ofDays(3).toMillis()), "message.timestamp.type", "CreateTime"));
        internal("-words-repartition", Map.of("cleanup.policy", "delete", "retention.ms", "-1", "segment.bytes", "52428800",
            "message.timestamp.type", "CreateTime"));
    }

    private void internal(String suffix, Map<String, String> wanted) throws Exception {
        String topic = APPLICATION + suffix;
        var partitions = admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic).partitions();
        Lines.same(partitions.size(), PARTITIONS, "partitions of " + topic);
        var resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        var config = admin.describeConfigs(List.of(resource)).all().get().get(resource);
        var got = wanted.keySet().stream().collect(Collectors.toMap(key -> key, key -> config.get(key).value()));
        Lines.same(got, wanted, "configs of " + topic);
    }

    /** Its state is gone: what it goes on from is the changelog. */
    private void restored() throws Exception {
        delete(home.resolve("one"));
        var restored = new AtomicLong();
        var streams = make("one", Map.of());
        streams.setGlobalStateRestoreListener(new StateRestoreListener() {
            @Override
            public void onRestoreStart(TopicPartition partition, String store, long first, long end) {}

            @Override
            public void onBatchRestored(TopicPartition partition, String store, long end, long records) {}

            @Override
            public void onRestoreEnd(TopicPartition partition, String store, long records) {
                if (store.equals(WordCount.COUNTS)) {
                    restored.addAndGet(records);
                }
            }
        });
        streams.start();
        try {
            running(streams);
            Lines.holds(restored.get() >= counted.size(), "every word's count was restored, of " + restored.get() + " records");
            Lines.same(stored(streams), new TreeMap<>(counted), "the store before anything new");
            produce();
            judge(1);
            Lines.until("the store has all counts", () -> stored(streams).equals(counted));
        } finally {
            close(streams);
        }
    }

    private static Map<String, Long> stored(KafkaStreams streams) {
        var store = streams.store(StoreQueryParameters.fromNameAndType(WordCount.COUNTS, QueryableStoreTypes.<String, Long>keyValueStore()));
        var all = new TreeMap<String, Long>();
        try (var rows = store.all()) {
            rows.forEachRemaining(row -> all.put(row.key, row.value));
        }
        return all;
    }

    private void brokerRestart() throws Exception {
        var streams = start("one");
        try {
            produce();
            Lines.restartBroker();
            produce();
            judge(1);
        } finally {
            close(streams);
        }
    }

    /** In the middle of its work; its unfinished transactions must not be seen, its state on disk is thrown away. */
    private void killed() throws Exception {
        var log = home.resolve("process.log");
        try {
            long before = total();
            var process = process(log);
            produce();
            Lines.until("some of it is counted", () -> read(WordCount.counts(APPLICATION), new StringDeserializer()).size() > before);
            Lines.kill(process);
            produce();
            process = process(log);
            judge(1);
            Lines.stop(process);
        } catch (Throwable problem) {
            Lines.show(log);
            throw problem;
        }
    }

    private Process process(Path log) throws Exception {
        return Lines.process(log, 256, "WordCount", bootstrap, APPLICATION, home.resolve("process").toString());
    }

    /** With standby copies of the stores; the first goes while there is work. */
    private void takeOver() throws Exception {
        var standby = Map.of("num.standby.replicas", 1, "probing.rebalance.interval.ms", 60_000);
        var first = make("one", standby);
        first.start();
        running(first);
        var second = make("two", standby);
        second.start();
        try {
            running(second);
            produce();
            close(first);
            produce();
            judge(1);
        } finally {
            close(first);
            close(second);
        }
    }

    private void purged() throws Exception {
        var streams = start("two");
        try {
            String topic = APPLICATION + "-words-repartition";
            var parts = IntStream.range(0, PARTITIONS).mapToObj(part -> new TopicPartition(topic, part)).toList();
            Lines.until("all that was read of the repartition topic is deleted", () -> {
                var starts = admin.listOffsets(all(parts, OffsetSpec.earliest())).all().get();
                var ends = admin.listOffsets(all(parts, OffsetSpec.latest())).all().get();
                // What is left is at most the marker of the last transaction.
                return parts.stream().allMatch(part -> starts.get(part).offset() + 1 >= ends.get(part).offset() && ends.get(part).offset() > 0);
            });
        } finally {
            close(streams);
        }
    }

    private static Map<TopicPartition, OffsetSpec> all(List<TopicPartition> parts, OffsetSpec spec) {
        return parts.stream().collect(Collectors.toMap(part -> part, part -> spec));
    }

    private void reset() throws Exception {
        Lines.until("the group has no members", () ->
            admin.describeConsumerGroups(List.of(APPLICATION)).all().get().get(APPLICATION).members().isEmpty());
        int status = new StreamsResetter().execute(new String[] {"--bootstrap-server", bootstrap, "--application-id", APPLICATION,
            "--input-topics", WordCount.lines(APPLICATION)});
        Lines.same(status, 0, "status of the reset tool");
        Lines.until("the internal topics are gone", () -> admin.listTopics().names().get().stream()
            .noneMatch(name -> name.startsWith(APPLICATION) && (name.endsWith("-changelog") || name.endsWith("-repartition"))));
        delete(home);
        var streams = start("one");
        try {
            judge(2);
        } finally {
            close(streams);
        }
    }

    private KafkaStreams make(String folder, Map<String, ?> more) {
        return WordCount.make(bootstrap, APPLICATION, home.resolve(folder), more);
    }

    private KafkaStreams start(String folder) throws Exception {
        var streams = make(folder, Map.of());
        streams.start();
        running(streams);
        return streams;
    }

    private static void running(KafkaStreams streams) throws Exception {
        Lines.until("the application runs", () -> streams.state() == KafkaStreams.State.RUNNING);
    }

    private static void close(KafkaStreams streams) {
        Lines.holds(streams.close(WordCount.LEAVING), "the application closed");
    }

    private KafkaProducer<String, String> producer() {
        return new KafkaProducer<>(Map.of("bootstrap.servers", bootstrap, "linger.ms", 5), new StringSerializer(), new StringSerializer());
    }

    /** Lines of random words, one a second of event time. */
    private void produce() {
        try (var producer = producer()) {
            for (int n = 0; n < LINES; n++) {
                var words = IntStream.range(0, WORDS_PER_LINE).mapToObj(any -> "word" + random.nextInt(WORDS)).toList();
                long time = BEGAN_MS + produced * 1000L;
                String window = "@" + time / WordCount.WINDOW.toMillis() * WordCount.WINDOW.toMillis();
                for (String word : words) {
                    counted.merge(word, 1L, Long::sum);
                    windowed.merge(word + window, 1L, Long::sum);
                }
                producer.send(new ProducerRecord<>(WordCount.lines(APPLICATION), produced % PARTITIONS, time, "line" + produced,
                    String.join(" ", words)));
                produced++;
            }
        }
    }

    private long total() {
        return counted.values().stream().mapToLong(Long::longValue).sum();
    }

    /** The output: of each word every count from one to the last, in order, as often as all was counted anew. */
    private void judge(int times) throws Exception {
        Map<String, List<String>> wanted = new HashMap<>();
        counted.forEach((word, count) -> wanted.put(word, IntStream.range(0, times).boxed()
            .flatMap(any -> LongStream.rangeClosed(1, count).mapToObj(n -> name(word) + " " + n)).toList()));
        Lines.until("all words are counted", () -> read(WordCount.counts(APPLICATION), new StringDeserializer()).size() >= total() * times);
        Map<String, List<String>> got = new HashMap<>();
        for (var row : read(WordCount.counts(APPLICATION), new StringDeserializer())) {
            got.computeIfAbsent(row.getKey(), any -> new ArrayList<>()).add(row.getValue());
        }
        Lines.same(got.keySet(), wanted.keySet(), "words");
        for (var word : wanted.entrySet()) {
            Lines.same(got.get(word.getKey()), word.getValue(), "counts of " + word.getKey());
        }
    }

    private Map<String, Long> windows() {
        var last = new TreeMap<String, Long>();
        for (var row : read(WordCount.windows(APPLICATION), new LongDeserializer())) {
            last.put(row.getKey(), row.getValue());
        }
        return last;
    }

    /** All committed records of a topic, in order within a partition. */
    private <V> List<Map.Entry<String, V>> read(String topic, Deserializer<V> values) {
        Map<String, Object> config = Map.of("bootstrap.servers", bootstrap, "isolation.level", "read_committed");
        List<Map.Entry<String, V>> rows = new ArrayList<>();
        try (var consumer = new KafkaConsumer<>(config, new StringDeserializer(), values)) {
            var parts = IntStream.range(0, PARTITIONS).mapToObj(part -> new TopicPartition(topic, part)).toList();
            consumer.assign(parts);
            consumer.seekToBeginning(parts);
            var ends = consumer.endOffsets(Set.copyOf(parts));
            long deadline = System.currentTimeMillis() + Lines.PATIENCE_MS;
            while (parts.stream().anyMatch(part -> consumer.position(part) < ends.get(part))) {
                Lines.holds(System.currentTimeMillis() < deadline, "the end of " + topic + " is reached");
                for (var record : consumer.poll(Duration.ofMillis(200))) {
                    rows.add(Map.entry(record.key(), record.value()));
                }
            }
        }
        return rows;
    }

    private static void delete(Path folder) throws Exception {
        if (Files.exists(folder)) {
            try (var all = Files.walk(folder)) {
                for (var path : all.sorted(Comparator.reverseOrder()).toList()) {
                    Files.delete(path);
                }
            }
        }
    }
}
