import java.io.FileInputStream;
import java.time.Duration;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** Reads with Kafka's own client and these settings, and prints the number of records or the error. Arguments: TOPIC SETTINGS-FILE... */
public class SecuredConsume {
    public static void main(String[] args) throws Exception {
        for (int n = 1; n < args.length; n++) {
            Properties settings = new Properties();
            try (var file = new FileInputStream(args[n])) {
                settings.load(file);
            }
            settings.put("auto.offset.reset", "earliest");
            settings.put("default.api.timeout.ms", "60000");
            settings.put("enable.auto.commit", "false");
            int found = 0;
            String said = "";
            try (var consumer = new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
                consumer.subscribe(List.of(args[0]));
                consumer.partitionsFor(args[0]);
                long until = System.currentTimeMillis() + 60_000;
                while (found < 10 && System.currentTimeMillis() < until) {
                    found += consumer.poll(Duration.ofMillis(200)).count();
                }
            } catch (Exception error) {
                Throwable at = error;
                said = at.getClass().getSimpleName() + ": " + at.getMessage();
            }
            System.out.println((found >= 10 ? "read" : "nothing") + " " + said.replace('\n', ' '));
        }
    }
}
