import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import org.apache.kafka.common.utils.Exit;

/**
 * Runs Kafka's console tools in one JVM. A line of standard input has a class and its arguments,
 * separated by tabs. The answer has the exit status, the number of lines, and the lines.
 */
public final class RunTools {
    private static final class Ended extends RuntimeException {
    }

    private static int status;
    private static String output; // null: the tool has not ended

    public static void main(String[] none) throws Exception {
        PrintStream answers = System.out;
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        PrintStream printed = new PrintStream(bytes, true, StandardCharsets.UTF_8);
        System.setOut(printed); // before a tool stores the original stream
        System.setErr(printed);
        Exit.setExitProcedure((given, message) -> {
            if (output == null) { // otherwise a tool caught the first exit
                status = given;
                output = bytes.toString(StandardCharsets.UTF_8);
            }
            throw new Ended();
        });
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line; (line = lines.readLine()) != null; ) {
            String[] words = line.split("\t");
            status = 0;
            output = null;
            run(words[0], Arrays.copyOfRange(words, 1, words.length));
            String all = output == null ? bytes.toString(StandardCharsets.UTF_8) : output;
            String[] found = all.split("\n");
            bytes.reset();
            answers.println(status + " " + found.length);
            for (String each : found) {
                answers.println(each);
            }
            answers.flush();
        }
        Runtime.getRuntime().halt(0);
    }

    private static void run(String name, String[] arguments) throws Exception {
        try {
            Class.forName(name).getMethod("main", String[].class).invoke(null, (Object) arguments);
        } catch (InvocationTargetException failed) {
            if (output == null) {
                status = -1;
                failed.printStackTrace();
            }
        }
    }
}
