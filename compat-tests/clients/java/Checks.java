import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** The Java client in two of the black-box checks; clients/confluent-kafka/checks.py says usage and lines. */
public final class Checks {
    private static final Map<String, String> OPTIONS = new HashMap<>();
    private static final Duration POLL = Duration.ofMillis(50);
    private static final int RECORDS_OF_A_LIFE = 400;
    private static final TreeMap<Integer, Long> FIRST = new TreeMap<>();
    private static final TreeMap<Integer, Long> NEXT = new TreeMap<>();
    private static volatile boolean stopped;

    public static void main(String[] arguments) throws Exception {
        for (String argument : Arrays.asList(arguments).subList(1, arguments.length)) {
            String[] parts = argument.split("=", 2);
            OPTIONS.put(parts[0], parts[1]);
        }
        if (arguments[0].equals("to-end")) {
            toEnd();
        } else {
            resume();
        }
        say("done");
        System.exit(0);
    }

    private static void say(String line) {
        System.out.println(line);
        System.out.flush();
    }

    private static void places(String name, Map<Integer, Long> offsets) {
        say(name + offsets.entrySet().stream().map(e -> " " + e.getKey() + ":" + e.getValue()).collect(Collectors.joining()));
    }

    private static KafkaConsumer<byte[], byte[]> consumer(String group, String reset) {
        var properties = new Properties();
        properties.put("bootstrap.servers", OPTIONS.get("bootstrap"));
        if (group != null) {
            properties.put("group.id", group);
        }
        properties.put("enable.auto.commit", "false");
        properties.put("auto.offset.reset", reset);
        properties.put("session.timeout.ms", "6000");
        properties.put("heartbeat.interval.ms", "500");
        properties.put("fetch.max.wait.ms", "100");
        properties.put("reconnect.backoff.ms", "20");
        properties.put("reconnect.backoff.max.ms", "200");
        properties.put("partition.assignment.strategy", "org.apache.kafka.clients.consumer.RangeAssignor");
        return new KafkaConsumer<>(properties, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    /** Offsets go on without a hole in each partition. */
    private static int read(KafkaConsumer<byte[], byte[]> consumer) {
        int count = 0;
        for (ConsumerRecord<byte[], byte[]> record : consumer.poll(POLL)) {
            Long due = NEXT.put(record.partition(), record.offset() + 1);
            if (due == null) {
                FIRST.put(record.partition(), record.offset());
            } else if (due != record.offset()) {
                say("fault partition " + record.partition() + ": offset " + record.offset() + " where " + due + " was due");
            }
            count++;
        }
        return count;
    }

    private static List<TopicPartition> partitions() {
        var all = new ArrayList<TopicPartition>();
        for (int partition = 0; partition < Integer.parseInt(OPTIONS.get("partitions")); partition++) {
            all.add(new TopicPartition(OPTIONS.get("topic"), partition));
        }
        return all;
    }

    private static void toEnd() {
        var line = new Thread(() -> {
            try {
                System.in.read();
            } catch (java.io.IOException error) {
                say("fault " + error);
            }
            stopped = true;
        });
        line.setDaemon(true);
        line.start();
        var consumer = consumer(null, "none");
        var all = partitions();
        consumer.assign(all);
        all.forEach(partition -> consumer.seek(partition, 0));
        while (!stopped) {
            read(consumer);
        }
        long began = System.nanoTime();
        Map<TopicPartition, Long> ends = consumer.endOffsets(all, Duration.ofMinutes(2));
        while (ends.entrySet().stream().anyMatch(end -> consumer.position(end.getKey(), Duration.ofMinutes(2)) < end.getValue())) {
            read(consumer);
        }
        long total = NEXT.values().stream().mapToLong(next -> next).sum();
        say(String.format(Locale.ROOT, "reached %.3f %d", (System.nanoTime() - began) / 1e9, total));
        consumer.close();
    }

    private static void resume() throws InterruptedException {
        var consumer = consumer(OPTIONS.get("group"), "earliest");
        consumer.subscribe(List.of(OPTIONS.get("topic")));
        int count = 0;
        while (NEXT.size() < partitions().size() || count < RECORDS_OF_A_LIFE) {
            count += read(consumer);
        }
        var positions = new HashMap<TopicPartition, OffsetAndMetadata>();
        NEXT.forEach((partition, next) -> positions.put(new TopicPartition(OPTIONS.get("topic"), partition), new OffsetAndMetadata(next)));
        while (true) {
            try {
                consumer.commitSync(positions, Duration.ofSeconds(10));
                break;
            } catch (KafkaException error) {
                Thread.sleep(50); // the broker is away
            }
        }
        places("first", FIRST);
        places("committed", NEXT);
        consumer.close();
    }
}
