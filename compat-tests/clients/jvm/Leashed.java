import java.io.IOException;
import java.util.Arrays;

/** Runs another program's main method; the process ends when whoever started it does. Usage: Leashed CLASS ARGUMENTS... */
final class Leashed {
    private Leashed() {}

    public static void main(String[] arguments) throws Exception {
        var leash = new Thread(() -> {
            try {
                System.in.readAllBytes();
            } catch (IOException gone) {
                // It is the end as well.
            }
            Runtime.getRuntime().halt(1);
        });
        leash.setDaemon(true);
        leash.start();
        Class.forName(arguments[0]).getMethod("main", String[].class)
            .invoke(null, (Object) Arrays.copyOfRange(arguments, 1, arguments.length));
    }
}
