import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.TimeUnit;

/** A worker of Kafka Connect as a process of its own, and its REST door. */
final class Worker {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final HttpClient HTTP = HttpClient.newHttpClient();
    private static final String TEXT = "org.apache.kafka.connect.storage.StringConverter";
    private static final int HEAP_MB = 256;
    private static final long HUNG_MS = 30_000;

    private final String name;
    private final Path log;
    private final int port;
    private final List<String> command = new ArrayList<>();
    private Process process;

    private Worker(Path home, String name) throws Exception {
        this.name = name;
        this.log = home.resolve(name + ".log");
        this.port = Lines.port();
    }

    static Worker distributed(Path home, String name, String bootstrap, String group) throws Exception {
        var worker = new Worker(home, name);
        var config = worker.config(bootstrap);
        config.put("group.id", group);
        for (String store : List.of("config", "offset", "status")) {
            config.put(store + ".storage.topic", group + "-" + store);
            config.put(store + ".storage.replication.factor", "1");
        }
        config.put("offset.storage.partitions", "4");
        config.put("status.storage.partitions", "2");
        config.put("exactly.once.source.support", "enabled");
        config.put("session.timeout.ms", "6000");
        config.put("heartbeat.interval.ms", "1000");
        config.put("scheduled.rebalance.max.delay.ms", "0");
        worker.command.addAll(List.of("org.apache.kafka.connect.cli.ConnectDistributed", write(home.resolve(name), config)));
        return worker;
    }

    /** With its connectors, each with its own config. */
    static Worker standalone(Path home, String name, String bootstrap, List<Map<String, String>> connectors) throws Exception {
        var worker = new Worker(home, name);
        var config = worker.config(bootstrap);
        config.put("offset.storage.file.filename", home.resolve(name + ".offsets").toString());
        worker.command.addAll(List.of("org.apache.kafka.connect.cli.ConnectStandalone", write(home.resolve(name), config)));
        for (var connector : connectors) {
            worker.command.add(write(home.resolve(connector.get("name")), connector));
        }
        return worker;
    }

    private Map<String, String> config(String bootstrap) {
        return new TreeMap<>(Map.of("bootstrap.servers", bootstrap, "key.converter", TEXT, "value.converter", TEXT,
            "listeners", "http://127.0.0.1:" + port, "offset.flush.interval.ms", "500", "plugin.discovery", "service_load",
            // A topic is its source's to create.
            "consumer.allow.auto.create.topics", "false"));
    }

    private static String write(Path path, Map<String, String> config) throws Exception {
        return Files.write(path, config.entrySet().stream().map(entry -> entry.getKey() + "=" + entry.getValue()).toList()).toString();
    }

    /** Waits until it answers. */
    void start() throws Exception {
        process = Lines.process(log, HEAP_MB, command.get(0), command.subList(1, command.size()).toArray(new String[0]));
        Lines.until(name + " answers", () -> {
            if (!process.isAlive()) {
                Lines.show(log);
                // No use in waiting on.
                throw new Error(name + " ended");
            }
            return call("GET", "/connectors", null).isArray();
        });
    }

    /**
     * SIGTERM, and the end of the process. Under load Connect's REST server (Jetty 12.0.34) now and then takes no notice of
     * its stop, and Connect waits for it for good before it stops anything else. Its tasks go on meanwhile and their offsets
     * are flushed every 500 ms, so that SIGKILL is as good then; any other process that does not end is a fault.
     */
    void stop() throws Exception {
        process.toHandle().destroy();
        if (!process.waitFor(HUNG_MS, TimeUnit.MILLISECONDS) && dump().contains("org.eclipse.jetty.server.Server.join")) {
            System.err.println(name + ": its REST server did not stop; SIGKILL");
            kill();
        }
        Lines.stop(process);
    }

    /** What its log has once its threads are shown there. */
    private String dump() throws Exception {
        new ProcessBuilder("kill", "-QUIT", Long.toString(process.pid())).start().waitFor();
        Lines.until(name + " shows its threads", () -> Files.readString(log).contains("JNI global refs"));
        return Files.readString(log);
    }

    void kill() throws Exception {
        Lines.kill(process);
    }

    void show() throws Exception {
        Lines.show(log);
    }

    /** Who runs the only task of a connector, by its name in answers. */
    String owner(String connector) throws Exception {
        return call("GET", "/connectors/" + connector + "/status", null).at("/tasks/0/worker_id").asText();
    }

    /** Its name in answers. */
    String id() {
        return "127.0.0.1:" + port;
    }

    /** Creates or changes a connector. */
    void put(Map<String, String> connector) throws Exception {
        Lines.until("a connector is taken", () -> call("PUT", "/connectors/" + connector.get("name") + "/config", connector).has("name"));
    }

    /** Waits until the connector and its tasks are all in a state. */
    void state(String connector, String wanted, int tasks) throws Exception {
        Lines.until(connector + " is " + wanted, () -> {
            var status = call("GET", "/connectors/" + connector + "/status", null);
            Lines.same(status.at("/connector/state").asText(), wanted, "state of " + connector + " in " + status);
            Lines.same(status.at("/tasks").size(), tasks, "tasks of " + connector);
            for (var task : status.at("/tasks")) {
                Lines.same(task.at("/state").asText(), wanted, "state of a task in " + status);
            }
            return true;
        });
    }

    /** Calls until that is answered with success: a rebalance may be under way. */
    void must(String method, String path, Object body) throws Exception {
        Lines.until(method + " " + path, () -> {
            call(method, path, body);
            return true;
        });
    }

    /** Throws unless the status is one of success. Connect itself gives up after 90 s. */
    JsonNode call(String method, String path, Object body) throws Exception {
        var content = body == null ? HttpRequest.BodyPublishers.noBody() : HttpRequest.BodyPublishers.ofString(JSON.writeValueAsString(body));
        var request = HttpRequest.newBuilder(URI.create("http://127.0.0.1:" + port + path)).method(method, content)
            .header("Content-Type", "application/json").timeout(Duration.ofSeconds(100)).build();
        var answer = HTTP.send(request, HttpResponse.BodyHandlers.ofString());
        Lines.holds(answer.statusCode() / 100 == 2, method + " " + path + " is answered: " + answer.statusCode() + " " + answer.body());
        return answer.body().isEmpty() ? JSON.nullNode() : JSON.readTree(answer.body());
    }
}
