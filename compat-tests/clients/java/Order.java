import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Arrays;
import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Random;
import java.util.TreeMap;
import java.util.TreeSet;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** The Java client in the order proof. Usage: Order produce|consume NAME=VALUE...; src/order/report.rs says what the lines mean. */
public final class Order {
    private static final int HEAD_BYTES = 16;
    private static final int PICKS = 1 << 16;
    private static final long SAY_EVERY_NS = 200_000_000L;
    private static final long COMMIT_EVERY_NS = 1_000_000_000L;
    private static final int FAULTS_SAID_MAX = 20;

    private static final Map<String, String> OPTIONS = new HashMap<>();
    private static volatile long limit;
    private static volatile Map<Integer, Long> ends;
    private static volatile boolean stop;
    private static int faults;

    public static void main(String[] arguments) throws Exception {
        for (String argument : Arrays.asList(arguments).subList(1, arguments.length)) {
            String[] parts = argument.split("=", 2);
            OPTIONS.put(parts[0], parts[1]);
        }
        var orders = new Thread(Order::listen);
        orders.setDaemon(true);
        orders.start();
        if (arguments[0].equals("produce")) {
            produce();
        } else {
            new Reading().run();
        }
        System.out.flush();
        System.exit(0);
    }

    /** What the driver writes to stdin. */
    private static void listen() {
        try (var input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8))) {
            for (String line = input.readLine(); line != null; line = input.readLine()) {
                String[] words = line.trim().split(" ");
                switch (words[0]) {
                    case "limit" -> limit = Long.parseLong(words[1]);
                    case "ends" -> ends = places(Arrays.asList(words).subList(1, words.length));
                    case "stop" -> stop = true;
                    default -> { }
                }
            }
        } catch (IOException error) {
            say("note " + error);
        }
        stop = true; // the driver is gone
    }

    private static Map<Integer, Long> places(List<String> parts) {
        var places = new TreeMap<Integer, Long>();
        for (String part : parts) {
            String[] place = part.split(":");
            places.put(Integer.parseInt(place[0]), Long.parseLong(place[1]));
        }
        return places;
    }

    private static synchronized void say(String line) {
        System.out.println(line);
        System.out.flush();
    }

    private static synchronized void fault(String what) {
        faults++;
        if (faults <= FAULTS_SAID_MAX) {
            say("fault " + what.replace('\n', ' '));
        } else if (faults == FAULTS_SAID_MAX + 1) {
            say("fault and more of them");
        }
    }

    private static Properties base() {
        var settings = new Properties();
        settings.put("bootstrap.servers", OPTIONS.get("bootstrap"));
        settings.put("request.timeout.ms", "60000");
        return settings;
    }

    /** What was acknowledged of a partition. */
    private static final class Acked {
        long count;
        long first = -1;
        long last = -1;
        long sum;
    }

    private static void produce() throws Exception {
        String topic = OPTIONS.get("topic");
        int number = Integer.parseInt(OPTIONS.get("producer"));
        long records = Long.parseLong(OPTIONS.get("records"));
        int keys = Integer.parseInt(OPTIONS.get("keys"));
        int bytes = Math.max(HEAD_BYTES, Integer.parseInt(OPTIONS.get("value-bytes")));
        boolean idempotent = OPTIONS.get("idempotent").equals("true");
        var settings = base();
        settings.put("acks", "all");
        settings.put("enable.idempotence", OPTIONS.get("idempotent"));
        settings.put("max.in.flight.requests.per.connection", "5");
        settings.put("compression.type", OPTIONS.get("compression"));
        settings.put("linger.ms", "5");
        settings.put("delivery.timeout.ms", "180000");
        settings.put("max.block.ms", "180000");
        if (!idempotent) {
            // A plain producer that tries again may reorder by itself: an append that is refused must be seen to fail.
            settings.put("retries", "0");
        }
        var names = new byte[keys][];
        for (int key = 0; key < keys; key++) {
            names[key] = ("key-" + key).getBytes(StandardCharsets.UTF_8);
        }
        int[] picks = new Random(Long.parseLong(OPTIONS.get("seed"))).ints(PICKS, 0, keys).toArray();
        int[] counters = new int[keys];
        // Callbacks come from one thread; it is done when the producer is closed.
        int[] acked = new int[keys];
        var partitions = new TreeMap<Integer, Acked>();
        long[] done = new long[2];
        var producer = new KafkaProducer<byte[], byte[]>(settings, new ByteArraySerializer(), new ByteArraySerializer());
        long said = System.nanoTime();
        for (int total = 0; total < records && !stop; ) {
            if (total >= limit) {
                Thread.sleep(20);
            } else {
                int key = picks[total % PICKS];
                var value = new byte[bytes];
                Arrays.fill(value, (byte) '.');
                ByteBuffer.wrap(value).putInt(number).putInt(key).putInt(counters[key]).putInt(total);
                producer.send(new ProducerRecord<>(topic, names[key], value), (metadata, error) -> {
                    if (error != null) {
                        done[1]++;
                        fault("failed send: " + error);
                        return;
                    }
                    done[0]++;
                    acked[key]++;
                    Acked told = partitions.computeIfAbsent(metadata.partition(), p -> new Acked());
                    if (metadata.offset() <= told.last) {
                        fault("partition " + metadata.partition() + ": offset " + metadata.offset() + " acknowledged after " + told.last);
                    }
                    if (told.count == 0) {
                        told.first = metadata.offset();
                    }
                    told.count++;
                    told.last = metadata.offset();
                    told.sum += metadata.offset();
                });
                counters[key]++;
                total++;
            }
            if ((total & 63) == 0 || total >= limit) {
                long now = System.nanoTime();
                if (now - said > SAY_EVERY_NS) {
                    said = now;
                    say("acked " + done[0]);
                }
            }
        }
        producer.flush();
        double retries = producer.metrics().entrySet().stream()
            .filter(e -> e.getKey().name().equals("record-retry-total") && e.getKey().group().equals("producer-metrics"))
            .mapToDouble(e -> (double) e.getValue().metricValue()).sum();
        producer.close();
        say("acked " + done[0]);
        partitions.forEach((partition, told) ->
            say("offsets " + partition + " " + told.count + " " + told.first + " " + told.last + " " + told.sum));
        for (int key = 0; key < keys; key++) {
            if (counters[key] > 0) {
                say("key " + key + " " + counters[key] + " " + acked[key]);
            }
        }
        say("failed " + done[1]);
        say("retries " + (long) retries);
        say("done");
    }

    /** First and next counter of a key of a producer. */
    private static final class Run {
        final int first;
        int next;

        Run(int first) {
            this.first = first;
            this.next = first;
        }
    }

    /** What was read of a partition from one assignment to the next. */
    private static final class Stretch {
        final long first;
        long next;
        final Map<Long, Run> keys = new HashMap<>();
        final Map<Integer, Integer> totals = new HashMap<>();

        Stretch(long first) {
            this.first = first;
            this.next = first;
        }
    }

    private static final class Reading implements ConsumerRebalanceListener {
        private final String topic = OPTIONS.get("topic");
        private final String group = OPTIONS.get("group");
        private final Map<Integer, Stretch> stretches = new TreeMap<>();
        private final TreeSet<Integer> assigned = new TreeSet<>();
        private final KafkaConsumer<byte[], byte[]> consumer;
        private long read;

        Reading() {
            var settings = base();
            settings.put("enable.auto.commit", "false");
            settings.put("partition.assignment.strategy", "org.apache.kafka.clients.consumer.RangeAssignor");
            settings.put("session.timeout.ms", "45000");
            settings.put("heartbeat.interval.ms", "500");
            settings.put("fetch.max.wait.ms", "100");
            settings.put("max.poll.records", "5000");
            settings.put("auto.offset.reset", group == null ? "none" : "earliest");
            if (group != null) {
                settings.put("group.id", group);
            }
            consumer = new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
        }

        private String numbers(Collection<Integer> partitions) {
            var line = new StringBuilder();
            partitions.forEach(partition -> line.append(' ').append(partition));
            return line.toString();
        }

        private void begun(Map<Integer, Long> starts) {
            starts.forEach((partition, offset) -> stretches.put(partition, new Stretch(offset)));
            assigned.addAll(starts.keySet());
            if (group != null) {
                say("assigned" + numbers(assigned));
            }
        }

        private void closed(Collection<Integer> partitions) {
            for (int partition : partitions) {
                var stretch = stretches.remove(partition);
                if (stretch != null) {
                    var line = new StringBuilder("stretch " + partition + " " + stretch.first + " " + stretch.next);
                    stretch.keys.forEach((id, run) -> line.append(' ').append(id >>> 32).append(':').append(id.intValue())
                        .append(':').append(run.first).append(':').append(run.next));
                    say(line.toString());
                }
            }
        }

        private void commit(boolean strict) {
            var offsets = new HashMap<TopicPartition, OffsetAndMetadata>();
            assigned.forEach(p -> offsets.put(new TopicPartition(topic, p), new OffsetAndMetadata(stretches.get(p).next)));
            if (offsets.isEmpty()) {
                return;
            }
            try {
                consumer.commitSync(offsets, Duration.ofSeconds(60));
            } catch (KafkaException error) {
                if (strict) {
                    fault("commit: " + error);
                }
            }
        }

        @Override
        public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
            var starts = new TreeMap<Integer, Long>();
            consumer.committed(new HashSet<>(partitions), Duration.ofSeconds(60)).forEach((partition, committed) ->
                // A group that has committed nothing yet begins at 0.
                starts.put(partition.partition(), committed == null ? 0 : committed.offset()));
            begun(starts);
        }

        @Override
        public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
            commit(true);
            var numbers = new TreeSet<Integer>();
            partitions.forEach(partition -> numbers.add(partition.partition()));
            assigned.removeAll(numbers);
            say("revoked" + numbers(numbers));
            closed(numbers);
        }

        @Override
        public void onPartitionsLost(Collection<TopicPartition> partitions) {
            fault("assignment lost");
            onPartitionsRevoked(partitions);
        }

        private void take(ConsumerRecord<byte[], byte[]> record) {
            var stretch = stretches.get(record.partition());
            if (stretch == null) {
                fault("partition " + record.partition() + ": offset " + record.offset() + " without an assignment");
                return;
            }
            if (record.offset() != stretch.next) {
                fault("partition " + record.partition() + ": offset " + record.offset() + " where " + stretch.next + " was due");
            }
            stretch.next = record.offset() + 1;
            var head = ByteBuffer.wrap(record.value());
            int producer = head.getInt();
            int key = head.getInt();
            int counter = head.getInt();
            int total = head.getInt();
            var run = stretch.keys.computeIfAbsent((long) producer << 32 | key, id -> new Run(counter));
            if (counter != run.next) {
                fault(at(record) + counter + " of key " + key + " of producer " + producer + " where " + run.next + " was due");
            }
            run.next = counter + 1;
            Integer before = stretch.totals.put(producer, total);
            if (before != null && total <= before) {
                fault(at(record) + total + " of producer " + producer + " after " + before);
            }
            read++;
        }

        private static String at(ConsumerRecord<byte[], byte[]> record) {
            return "partition " + record.partition() + " offset " + record.offset() + ": record ";
        }

        void run() throws Exception {
            if (group != null) {
                consumer.subscribe(List.of(topic), this);
            } else {
                var starts = places(List.of(OPTIONS.get("from").split(",")));
                consumer.assign(starts.keySet().stream().map(p -> new TopicPartition(topic, p)).toList());
                starts.forEach((partition, offset) -> consumer.seek(new TopicPartition(topic, partition), offset));
                begun(starts);
            }
            long rate = Long.parseLong(OPTIONS.getOrDefault("rate", "0"));
            long began = System.nanoTime();
            long said = began;
            long committed = began;
            boolean reached = false;
            while (!stop) {
                long now = System.nanoTime();
                if (rate > 0 && ends == null && read > rate * ((now - began) / 1e9)) {
                    Thread.sleep(20);
                    continue;
                }
                try {
                    consumer.poll(Duration.ofMillis(100)).forEach(this::take);
                } catch (KafkaException error) {
                    fault("read: " + error);
                    Thread.sleep(100);
                }
                if (group != null && now - committed > COMMIT_EVERY_NS) {
                    committed = now;
                    commit(false);
                }
                if (now - said > SAY_EVERY_NS) {
                    said = now;
                    say("read " + read);
                }
                var wanted = ends;
                if (!reached && wanted != null && !assigned.isEmpty()
                    && assigned.stream().allMatch(p -> stretches.get(p).next >= wanted.getOrDefault(p, 0L))) {
                    reached = true;
                    say("reached");
                }
            }
            if (group != null) {
                commit(true);
            }
            closed(new TreeSet<>(stretches.keySet()));
            assigned.clear();
            consumer.close();
            say("read " + read);
            say("done");
        }
    }
}
