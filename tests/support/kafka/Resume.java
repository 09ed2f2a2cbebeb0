import java.time.Duration;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** Joins a group with Kafka's own client, and prints the offset of the first record that it gets. Arguments: ADDRESS PROTOCOL TOPIC GROUP... */
public class Resume {
    public static void main(String[] args) {
        for (int n = 3; n < args.length; n++) {
            Properties settings = new Properties();
            settings.put("bootstrap.servers", args[0]);
            settings.put("group.id", args[n]);
            settings.put("group.protocol", args[1]);
            settings.put("enable.auto.commit", "false");
            settings.put("auto.offset.reset", "none");
            settings.put("isolation.level", "read_committed");
            try (var consumer = new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
                consumer.subscribe(List.of(args[2]));
                long offset = -1;
                for (int tries = 0; tries < 60 && offset < 0; tries++) {
                    for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofSeconds(1))) {
                        offset = record.offset();
                        break;
                    }
                }
                System.out.println(args[n] + " " + offset);
            }
        }
    }
}
