import java.io.ByteArrayInputStream;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;

/**
 * What people script with Kafka's tools that produce and consume, all of them in this one process: console, performance
 * and verifiable clients, the transactional copier, and what is said of its transactions. Usage: Scripts HOST:PORT
 */
public final class Scripts extends InProcess {
    private static final String T = "scripts-" + UUID.randomUUID().toString().substring(0, 8);
    private static final String COPY = T + "-copy";
    private static final String CONSUMER = "tools.consumer.ConsoleConsumer";

    private Scripts(String bootstrap) {
        super(bootstrap);
    }

    public static void main(String[] arguments) throws Exception {
        new Scripts(arguments[arguments.length - 1]).main();
    }

    @Override
    protected void all() throws Exception {
        try (var admin = Admin.create(Map.of("bootstrap.servers", bootstrap))) {
            admin.createTopics(List.of(new NewTopic(T, 1, (short) 1), new NewTopic(T + "-p", 4, (short) 1),
                new NewTopic(T + "-e", 1, (short) 1), new NewTopic(COPY, 1, (short) 1))).all().get();
        }
        console();
        performance();
        verifiable();
        copier();
    }

    private void console() {
        String rows = IntStream.range(0, 20).mapToObj(n -> "h:" + n + ",empty:\tkey" + n + "\t" + (n == 7 ? "NULL" : "value " + n))
            .collect(Collectors.joining("\n", "", "\n"));
        System.setIn(new ByteArrayInputStream(rows.getBytes(StandardCharsets.UTF_8)));
        ok("script-console-producer-keys-headers-nulls", "", "tools.ConsoleProducer", "--topic", T, "--reader-property", "parse.key=true",
            "--reader-property", "parse.headers=true", "--reader-property", "null.marker=NULL", "--compression-codec", "gzip",
            "--command-property", "enable.idempotence=true");
        ok("script-console-consumer-all-columns", "(?m)^CreateTime:\\d{13}\tPartition:0\tOffset:7\th:7,empty:\tkey7\tnull$", CONSUMER, "--topic", T,
            "--from-beginning", "--max-messages", "20", "--timeout-ms", "30000", "--formatter-property", "print.key=true",
            "--formatter-property", "print.headers=true", "--formatter-property", "print.timestamp=true", "--formatter-property", "print.offset=true",
            "--formatter-property", "print.partition=true");
        ok("script-console-consumer-from-offset", "^value 11\\s+value 12\\s+Processed a total of 2 messages$", CONSUMER, "--topic", T, "--partition", "0",
            "--offset", "11", "--max-messages", "2", "--timeout-ms", "30000");
        ok("script-console-consumer-latest-is-empty", "Processed a total of 0 messages", CONSUMER, "--topic", T, "--partition", "0",
            "--offset", "latest", "--timeout-ms", "3000");
        ok("script-console-consumer-new-group", "Processed a total of 20 messages", CONSUMER, "--topic", T, "--group", "new-" + T,
            "--from-beginning", "--max-messages", "20", "--timeout-ms", "30000", "--command-property", "group.protocol=consumer");
        ok("script-console-consumer-by-pattern", "Processed a total of 20 messages", CONSUMER, "--include", "scripts-.*" + T.substring(8) + "|no-such",
            "--from-beginning", "--max-messages", "20", "--timeout-ms", "30000");
    }

    private void performance() {
        ok("script-performance-producer", "3000 records sent, .* records/sec", "tools.ProducerPerformance", "--topic", T + "-p", "--num-records", "3000",
            "--record-size", "200", "--throughput", "-1", "--command-property", "acks=all", "compression.type=lz4");
        ok("script-performance-producer-transactional", "3000 records sent, .* records/sec", "tools.ProducerPerformance", "--topic", T + "-p",
            "--num-records", "3000", "--record-size", "200", "--throughput", "3000", "--transactional-id", T, "--transaction-duration-ms", "100");
        ok("script-performance-consumer", "(?m)^[^,]+, [^,]+, [0-9.]+, [0-9.]+, 6[0-9]{3}, ", "tools.ConsumerPerformance", "--topic", T + "-p",
            "--num-records", "6000", "--timeout", "30000", "--group", "perf-" + T);
        ok("script-end-to-end-latency", "(?s)Avg latency: .* ms.*Percentiles: 50th = ", "tools.EndToEndLatency", "--topic", T + "-e", "--num-records", "100",
            "--producer-acks", "all", "--record-size", "100");
    }

    /** The producer says what it did when its process ends: it has a line in suite.sh. */
    private void verifiable() {
        ok("script-verifiable-consumer-static-member", "(?s)(?=.*\"name\":\"partitions_assigned\")(?=.*\"name\":\"offsets_committed\".*\"success\":true)"
            + "(?=.*\"name\":\"shutdown_complete\")", "tools.VerifiableConsumer", "--topic", T + "-p", "--group-id", "v-" + T, "--group-instance-id", "one",
            "--session-timeout", "6000", "--max-messages", "500", "--reset-policy", "earliest", "--verbose");
        ok("script-verifiable-consumer-new-group", "(?s)(?=.*\"name\":\"partitions_assigned\")(?=.*\"name\":\"offsets_committed\".*\"success\":true)",
            "tools.VerifiableConsumer", "--topic", T + "-p", "--group-id", "nv-" + T, "--group-protocol", "consumer", "--group-remote-assignor", "range",
            "--max-messages", "500", "--reset-policy", "earliest");
    }

    /** Each transaction is of three records, one of them perhaps aborted and tried again; the last is of one and said nothing of. */
    private void copier() {
        String[] copy = {"--input-topic", T, "--input-partition", "0", "--output-topic", COPY, "--consumer-group", "c-" + T,
            "--transaction-size", "3", "--transactional-id", "copy-" + T};
        ok("script-transactional-copier", "\"totalProcessed\":9\\b", "tools.TransactionalMessageCopier",
            with(copy, "--max-messages", "10", "--enable-random-aborts", "--use-group-metadata"));
        ok("script-transactional-copier-goes-on", "\"stage\":\"RebalanceComplete\"", "tools.TransactionalMessageCopier",
            with(copy, "--enable-random-aborts", "--group-mode", "--use-group-metadata"));
        ok("script-copy-is-whole", "(?ms)^value 0\\s.*value 6\\s+null\\s+value 8\\s.*value 19\\s.*Processed a total of 20 messages$", CONSUMER, "--topic", COPY,
            "--from-beginning", "--isolation-level", "read_committed", "--timeout-ms", "5000");
        ok("script-transactions-list", "(?m)^copy-" + T + "\\s+\\d+\\s+\\d+\\s+CompleteCommit", "tools.TransactionsCommand", "list");
        ok("script-transactions-describe", "(?m)\\scopy-" + T + "\\s+\\d+\\s+\\d+\\s+CompleteCommit", "tools.TransactionsCommand", "describe",
            "--transactional-id", "copy-" + T);
        ok("script-transactions-describe-producers", "(?m)^ProducerId\\s.*\\n\\d+\\s+\\d+\\s", "tools.TransactionsCommand", "describe-producers", "--topic",
            COPY, "--partition", "0");
        ok("script-transactions-none-hanging", "^$|^Topic\\s+Partition\\s+ProducerId[^\\n]*$", "tools.TransactionsCommand", "find-hanging", "--topic", COPY);
    }
}
