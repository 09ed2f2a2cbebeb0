import java.time.Duration;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.serialization.StringDeserializer;

/** Reads a topic with Kafka's Java client; see programs.py. Arguments: ADDRESS TOPIC COUNT GROUP PROTOCOL. */
public class Read {
    public static void main(String[] args) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", args[0]);
        settings.put("group.id", args[3]);
        settings.put("group.protocol", args[4]);
        settings.put("enable.auto.commit", "false");
        settings.put("auto.offset.reset", "earliest");
        int left = Integer.parseInt(args[2]);
        try (var consumer = new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of(args[1]));
            while (left > 0) {
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(500))) {
                    String value = record.value() == null ? "NULL" : record.value();
                    System.out.println(record.offset() + " " + record.key() + " " + value);
                    left--;
                }
            }
            consumer.commitSync();
        }
    }
}
