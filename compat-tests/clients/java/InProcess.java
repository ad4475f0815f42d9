import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.regex.Pattern;
import org.apache.kafka.common.utils.internals.Exit;

/**
 * Runs Kafka's tools in this process, one after the other, and writes a line for each.
 *
 * A line is ok when the tool ended as it should and printed what matches. What it prints is what the reference broker
 * makes it print too.
 */
abstract class InProcess {
    private static final ByteArrayOutputStream PRINTED = new ByteArrayOutputStream();
    /** How the tool that runs ended first, and what it had printed by then; some take the end for a failure and go on. */
    private static Integer status;
    private static String printed;

    protected final String bootstrap;
    private final PrintStream lines = System.out;
    private boolean failed;

    protected InProcess(String bootstrap) {
        this.bootstrap = bootstrap;
    }

    /** A tool ended, instead of the process. */
    private static final class Ended extends RuntimeException {
        private static final long serialVersionUID = 1;

        private Ended() {
            super("ended", null, false, false);
        }
    }

    /** Runs all lines and ends the process. */
    protected final void main() throws Exception {
        // One stream for all tools, emptied before each: some keep the one that they find first.
        var capture = new PrintStream(PRINTED, true, StandardCharsets.UTF_8);
        System.setOut(capture);
        System.setErr(capture);
        Exit.setExitProcedure((code, message) -> {
            end(code);
            throw new Ended();
        });
        all();
        lines.flush();
        Runtime.getRuntime().halt(failed ? 1 : 0);
    }

    protected abstract void all() throws Exception;

    protected static String[] with(String[] first, String... more) {
        var all = new ArrayList<>(Arrays.asList(first));
        all.addAll(List.of(more));
        return all.toArray(new String[0]);
    }

    protected static String file(String json) throws Exception {
        var path = Files.createTempFile("tools", ".json");
        path.toFile().deleteOnExit();
        return Files.writeString(path, json).toString();
    }

    protected final void ok(String name, String pattern, String tool, String... arguments) {
        line(name, true, pattern, tool, arguments);
    }

    protected final void refused(String name, String pattern, String tool, String... arguments) {
        line(name, false, pattern, tool, arguments);
    }

    private static void end(int code) {
        if (status == null) {
            status = code;
            printed = PRINTED.toString(StandardCharsets.UTF_8).strip();
        }
    }

    private void line(String name, boolean succeeds, String pattern, String tool, String... arguments) {
        PRINTED.reset();
        status = null;
        try {
            run(tool, arguments);
            end(0);
        } catch (Ended ended) {
            // It is noted.
        } catch (Throwable problem) {
            problem.printStackTrace();
            end(-1);
        }
        if ((status == 0) == succeeds && Pattern.compile(pattern).matcher(printed).find()) {
            lines.println("ok " + name);
        } else {
            failed = true;
            String shown = printed.replaceAll("\\s+", " ");
            lines.println("FAIL " + name + ": status " + status + ", wanted /" + pattern + "/, printed: "
                + shown.substring(0, Math.min(shown.length(), 600)));
        }
        lines.flush();
    }

    /** Runs the main method of a tool of Kafka's. */
    private void run(String tool, String... arguments) throws Throwable {
        String name = "org.apache.kafka." + tool;
        String[] at = {tool.endsWith("TransactionalMessageCopier") ? "--broker-list" : "--bootstrap-server", bootstrap};
        // Sub-commands come first, their options after them.
        boolean sub = arguments.length > 0 && !arguments[0].startsWith("--");
        String[] all = sub && !tool.endsWith("ClusterTool") ? with(at, arguments) : with(arguments, at);
        try {
            Class.forName(name).getMethod("main", String[].class).invoke(null, (Object) all);
        } catch (InvocationTargetException thrown) {
            throw thrown.getCause();
        }
    }
}
