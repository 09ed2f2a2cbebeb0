import java.time.Duration;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** Continues a group with Kafka's own client, prints each offset, and commits. Arguments: ADDRESS PROTOCOL TOPIC GROUP SECONDS-OF-SILENCE */
public class Consume {
    public static void main(String[] args) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", args[0]);
        settings.put("group.protocol", args[1]);
        settings.put("group.id", args[3]);
        settings.put("enable.auto.commit", "false");
        settings.put("auto.offset.reset", "earliest");
        settings.put("isolation.level", "read_committed");
        long silence = Long.parseLong(args[4]) * 1000;
        try (var consumer = new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            consumer.subscribe(List.of(args[2]));
            long heard = System.currentTimeMillis();
            boolean begun = false;
            boolean assigned = false;
            while (System.currentTimeMillis() - heard < (begun ? silence : 60_000)) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(200))) {
                    System.out.println(record.partition() + " " + record.offset());
                    heard = System.currentTimeMillis();
                    begun = true;
                }
                if (!assigned && !consumer.assignment().isEmpty()) {
                    assigned = true;
                    heard = System.currentTimeMillis();
                }
                if (!begun && !consumer.assignment().isEmpty() && System.currentTimeMillis() - heard > 3 * silence) {
                    break;
                }
            }
            consumer.commitSync();
        }
    }
}
