import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.Set;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.selector.SelectMessageQueueByHash;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * Runs RocketMQ's own producer and consumer for tests.
 *
 * <p>Started by {@code java -cp LIB/* StockClient.java NAMESRV}. Reads one command in each line. Its words are separated
 * by one blank; texts and bytes are base64, and {@code -} means none. An answer ends with {@code done} or {@code failed REASON}.
 *
 * <pre>
 * send TOPIC KEY TAG BODY        queue by the hash of the key      sent QUEUE OFFSET
 * pull TOPIC QUEUE OFFSET        from OFFSET to the queue's end    message OFFSET PHYSICAL STORE_TIME KEY TAG BODY ...
 *                                                                  end STATUS NEXT MIN MAX
 * </pre>
 */
public class StockClient {
    public static void main(String[] args) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("lastwrite-tests");
        producer.setNamesrvAddr(args[0]);
        producer.setSendMsgTimeout(30_000);
        producer.start();
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer("lastwrite-tests-pull");
        consumer.setNamesrvAddr(args[0]);
        consumer.start();
        System.out.println("ready");
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line; (line = in.readLine()) != null; ) {
            String[] words = line.split(" ");
            try {
                if (words[0].equals("send")) send(producer, words);
                else pull(consumer, words[1], Integer.parseInt(words[2]), Long.parseLong(words[3]));
                System.out.println("done");
            } catch (Exception e) {
                System.out.println("failed " + e.toString().replace('\n', ' '));
            }
            System.out.flush();
        }
        Runtime.getRuntime().halt(0);    // without shutting the clients down, which takes seconds
    }

    static void send(DefaultMQProducer producer, String[] words) throws Exception {
        String key = text(words[2]);
        Message m = new Message(words[1], text(words[3]), key, Base64.getDecoder().decode(words[4]));
        SendResult r = producer.send(m, new SelectMessageQueueByHash(), key);
        System.out.println("sent " + r.getMessageQueue().getQueueId() + " " + r.getQueueOffset());
    }

    static void pull(DefaultMQPullConsumer consumer, String topic, int queueId, long offset) throws Exception {
        MessageQueue queue = null;
        Set<MessageQueue> queues = consumer.fetchSubscribeMessageQueues(topic);
        for (MessageQueue q : queues) if (q.getQueueId() == queueId) queue = q;
        for (int moved = 0; ; ) {
            PullResult r = consumer.pull(queue, "*", offset, 32);
            if (r.getMsgFoundList() != null) for (MessageExt m : r.getMsgFoundList()) {
                System.out.println("message " + m.getQueueOffset() + " " + m.getCommitLogOffset() + " " + m.getStoreTimestamp() + " "
                    + coded(m.getKeys()) + " " + coded(m.getTags()) + " " + coded(m.getBody()));
            }
            // If an answer without messages has another offset, pulls once from there, as a client does.
            boolean found = r.getPullStatus() == PullStatus.FOUND;
            if (!found && (r.getPullStatus() == PullStatus.NO_NEW_MSG || r.getNextBeginOffset() == offset || moved++ > 0)) {
                System.out.println("end " + r.getPullStatus() + " " + r.getNextBeginOffset() + " " + r.getMinOffset() + " " + r.getMaxOffset());
                return;
            }
            offset = r.getNextBeginOffset();
        }
    }

    static String text(String word) {
        return word.equals("-") ? null : new String(Base64.getDecoder().decode(word), StandardCharsets.UTF_8);
    }

    static String coded(String text) {
        return text == null ? "-" : coded(text.getBytes(StandardCharsets.UTF_8));
    }

    static String coded(byte[] bytes) {
        return bytes == null ? "=" : "=" + Base64.getEncoder().encodeToString(bytes);
    }
}
