import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.net.BindException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;

/**
 * What suites on the Java machine share: lines of their reports, the broker's restart, waiting with a limit, and
 * processes of their own.
 */
final class Lines {
    static final long PATIENCE_MS = 150_000;
    private static final BufferedReader INPUT = new BufferedReader(new InputStreamReader(System.in));
    private static final List<Process> PROCESSES = new ArrayList<>();
    private static boolean failed;

    private Lines() {}

    interface Work {
        void run() throws Exception;
    }

    interface Check {
        boolean holds() throws Exception;
    }

    /** One line of the suite. What it throws is what went wrong. */
    static void line(String name, Work work) {
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

    /** Ends the suite, and whatever it started. */
    static void end() {
        System.out.flush();
        PROCESSES.forEach(Process::destroyForcibly);
        Runtime.getRuntime().halt(failed ? 1 : 0);
    }

    /** Has the driver stop the broker and start it again. */
    static void restartBroker() throws Exception {
        System.out.println("RESTART");
        System.out.flush();
        same(INPUT.readLine(), "RESTARTED", "the driver's answer");
    }

    static void same(Object got, Object wanted, String what) {
        if (!wanted.equals(got)) {
            throw new AssertionError(what + ": wanted " + shown(wanted) + ", got " + shown(got));
        }
    }

    private static String shown(Object value) {
        String text = String.valueOf(value);
        return text.length() <= 300 ? text : text.substring(0, 300) + "…";
    }

    static void holds(boolean condition, String what) {
        if (!condition) {
            throw new AssertionError("not so: " + what);
        }
    }

    /** Waits until something holds. Throws what the last look threw, or that it never held. */
    static void until(String what, Check check) throws Exception {
        long end = System.currentTimeMillis() + PATIENCE_MS;
        while (true) {
            Throwable problem = null;
            try {
                if (check.holds()) {
                    return;
                }
            } catch (Exception | AssertionError notYet) {
                problem = notYet;
            }
            if (System.currentTimeMillis() > end) {
                throw new AssertionError("not within " + PATIENCE_MS + " ms: " + what, problem);
            }
            Thread.sleep(100);
        }
    }

    /** A port that nobody listens on, below those that the kernel takes for clients: what restarts must get it back. */
    static int port() throws IOException {
        for (int tries = 0; ; tries++) {
            int port = ThreadLocalRandom.current().nextInt(20_000, 30_000);
            try (var socket = new ServerSocket(port, 1, InetAddress.getLoopbackAddress())) {
                return socket.getLocalPort();
            } catch (BindException taken) {
                holds(tries < 1000, "a port is free");
            }
        }
    }

    /** A program of this class path in a process of its own; its output goes to the log file. It ends with this one. */
    static Process process(Path log, int heapMb, String main, String... arguments) throws Exception {
        var command = new ArrayList<>(List.of(System.getProperty("java.home") + "/bin/java", "-Xmx" + heapMb + "m",
            "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Dlog4j2.configurationFile=" + System.getProperty("log4j2.configurationFile"),
            "-cp", System.getProperty("java.class.path"), Leashed.class.getName(), main));
        command.addAll(List.of(arguments));
        var output = ProcessBuilder.Redirect.appendTo(log.toFile());
        var process = new ProcessBuilder(command).redirectErrorStream(true).redirectOutput(output).start();
        PROCESSES.add(process);
        return process;
    }

    /** SIGTERM, and the end of the process, which has its time for it. */
    static void stop(Process process) throws Exception {
        // Process.destroy would close its stdin as well, by which it is leashed.
        process.toHandle().destroy();
        holds(process.waitFor(PATIENCE_MS, TimeUnit.MILLISECONDS), "the process ended");
    }

    /** SIGKILL, and the end of the process. */
    static void kill(Process process) throws Exception {
        process.destroyForcibly();
        holds(process.waitFor(PATIENCE_MS, TimeUnit.MILLISECONDS), "the process ended");
    }

    /** The last lines of a process's log, for people. */
    static void show(Path log) throws Exception {
        var lines = Files.exists(log) ? Files.readAllLines(log) : List.<String>of();
        lines.subList(Math.max(0, lines.size() - 40), lines.size()).forEach(System.err::println);
    }
}
