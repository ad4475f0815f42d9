import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Random;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** The Java client in the exactly-once proof. Usage: Once copy NAME=VALUE...; src/once/mod.rs says what the lines mean. */
public final class Once {
    private static final Map<String, String> OPTIONS = new HashMap<>();
    private static volatile boolean stop;

    public static void main(String[] arguments) throws Exception {
        for (String argument : Arrays.asList(arguments).subList(1, arguments.length)) {
            String[] parts = argument.split("=", 2);
            OPTIONS.put(parts[0], parts[1]);
        }
        var orders = new Thread(Once::listen);
        orders.setDaemon(true);
        orders.start();
        var random = new Random(Long.parseLong(OPTIONS.get("seed")));
        while (!stop) {
            live(random);
        }
        say("done");
        System.exit(0);
    }

    private static void listen() {
        try (var input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8))) {
            for (String line = input.readLine(); line != null && !line.trim().equals("stop"); line = input.readLine()) {
                // Anything else is not for this program.
            }
        } catch (IOException error) {
            say("note " + error);
        }
        stop = true; // told to, or the driver is gone
    }

    private static synchronized void say(String line) {
        System.out.println(line.replace('\n', ' '));
        System.out.flush();
    }

    private static Properties base() {
        var settings = new Properties();
        settings.put("bootstrap.servers", OPTIONS.get("bootstrap"));
        settings.put("request.timeout.ms", "10000");
        settings.put("reconnect.backoff.max.ms", "500");
        return settings;
    }

    /** One life of producer and consumer, until something goes wrong or it is told to stop. */
    private static void live(Random random) {
        var settings = base();
        settings.put("transactional.id", OPTIONS.get("id"));
        settings.put("transaction.timeout.ms", "10000");
        settings.put("max.block.ms", "20000");
        settings.put("delivery.timeout.ms", "20000");
        settings.put("linger.ms", "2");
        var producer = new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer());
        boolean open = false;
        try (var consumer = consumer()) {
            producer.initTransactions();
            consumer.subscribe(List.of(OPTIONS.get("in")));
            while (!stop) {
                var records = consumer.poll(Duration.ofMillis(200));
                if (records.isEmpty()) {
                    continue;
                }
                boolean doomed = random.nextInt(10) == 0;
                producer.beginTransaction();
                open = true;
                var offsets = new HashMap<TopicPartition, OffsetAndMetadata>();
                for (ConsumerRecord<byte[], byte[]> record : records) {
                    byte[] value = doomed ? ("A" + new String(record.value(), StandardCharsets.US_ASCII)).getBytes() : record.value();
                    producer.send(new ProducerRecord<>(OPTIONS.get("out"), record.partition(), null, value));
                    offsets.put(new TopicPartition(record.topic(), record.partition()), new OffsetAndMetadata(record.offset() + 1));
                }
                producer.sendOffsetsToTransaction(offsets, consumer.groupMetadata());
                if (doomed) {
                    producer.flush();
                    producer.abortTransaction();
                    return;
                }
                producer.commitTransaction();
                open = false;
                say("copied " + records.count());
            }
        } catch (KafkaException error) {
            say("note " + error);
            if (open) {
                try {
                    producer.abortTransaction();
                } catch (KafkaException again) {
                    say("note " + again); // its successor aborts it
                }
            }
        } finally {
            producer.close(Duration.ZERO);
        }
    }

    private static KafkaConsumer<byte[], byte[]> consumer() {
        var settings = base();
        settings.put("group.id", OPTIONS.get("group"));
        settings.put("group.instance.id", OPTIONS.get("id"));
        settings.put("enable.auto.commit", "false");
        settings.put("auto.offset.reset", "earliest");
        settings.put("isolation.level", "read_committed");
        settings.put("session.timeout.ms", "6000");
        settings.put("heartbeat.interval.ms", "500");
        settings.put("max.poll.records", OPTIONS.get("batch"));
        return new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }
}
