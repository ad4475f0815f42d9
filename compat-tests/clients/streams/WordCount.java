import java.nio.file.Path;
import java.time.Duration;
import java.util.Arrays;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.CloseOptions;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.WindowStore;

/**
 * The word count of Kafka Streams' guide, exactly once: lines of words, grouped by word over a repartition topic, counted
 * in a store with a changelog, named by a global table; and per window of time, in a store whose changelog is compacted and
 * deleted. Every count is written out, none is cached. Usage as a process: WordCount HOST:PORT APPLICATION STATE-FOLDER
 */
public final class WordCount {
    static final CloseOptions LEAVING = CloseOptions.groupMembershipOperation(CloseOptions.GroupMembershipOperation.LEAVE_GROUP)
        .withTimeout(Duration.ofSeconds(30));
    static final Duration WINDOW = Duration.ofMinutes(1);
    static final String COUNTS = "counts";
    private static final String PER_WINDOW = "per-window";

    private WordCount() {}

    public static void main(String[] arguments) throws Exception {
        var streams = make(arguments[0], arguments[1], Path.of(arguments[2]), Map.of());
        Runtime.getRuntime().addShutdownHook(new Thread(() -> streams.close(LEAVING)));
        streams.start();
        Thread.sleep(Long.MAX_VALUE);
    }

    static KafkaStreams make(String bootstrap, String application, Path state, Map<String, ?> more) {
        var config = new Properties();
        config.put("bootstrap.servers", bootstrap);
        config.put("application.id", application);
        config.put("state.dir", state.toString());
        config.put("processing.guarantee", "exactly_once_v2");
        config.put("statestore.cache.max.bytes", 0);
        config.put("num.stream.threads", 2);
        config.put("repartition.purge.interval.ms", 500);
        config.put("session.timeout.ms", 6000);
        config.put("heartbeat.interval.ms", 500);
        config.putAll(more);
        return new KafkaStreams(topology(application), config);
    }

    static String lines(String application) {
        return application + "-lines";
    }

    static String names(String application) {
        return application + "-names";
    }

    static String counts(String application) {
        return application + "-out";
    }

    static String windows(String application) {
        return application + "-windows";
    }

    private static Topology topology(String application) {
        var builder = new StreamsBuilder();
        var text = Serdes.String();
        var names = builder.globalTable(names(application), Consumed.with(text, text));
        var words = builder.stream(lines(application), Consumed.with(text, text))
            .flatMapValues(line -> Arrays.asList(line.split(" ")))
            .groupBy((key, word) -> word, Grouped.with("words", text, text));
        words.count(Materialized.<String, Long, KeyValueStore<Bytes, byte[]>>as(COUNTS))
            .toStream()
            .join(names, (word, count) -> word, (count, name) -> name + " " + count)
            .to(counts(application), Produced.with(text, text));
        words.windowedBy(TimeWindows.ofSizeAndGrace(WINDOW, Duration.ofDays(1)))
            .count(Materialized.<String, Long, WindowStore<Bytes, byte[]>>as(PER_WINDOW).withRetention(Duration.ofDays(2)))
            .toStream((window, count) -> window.key() + "@" + window.window().start())
            .to(windows(application), Produced.with(text, Serdes.Long()));
        return builder.build();
    }
}
