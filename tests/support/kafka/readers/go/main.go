// See programs.py: ADDRESS TOPIC COUNT GROUP CLIENT.
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"

	"github.com/IBM/sarama"
	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kgo"
)

func main() {
	count, err := strconv.Atoi(os.Args[3])
	must(err)
	clients := map[string]func(address, topic string, count int, group string){
		"franz-go": franz, "sarama": saramas, "segmentio": segmentio,
	}
	clients[os.Args[5]](os.Args[1], os.Args[2], count, os.Args[4])
}

func show(offset int64, key, value []byte) {
	text := string(value)
	if value == nil {
		text = "NULL"
	}
	fmt.Printf("%d %s %s\n", offset, key, text)
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func franz(address, topic string, count int, group string) {
	client, err := kgo.NewClient(kgo.SeedBrokers(address), kgo.ConsumerGroup(group), kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.DisableAutoCommit())
	must(err)
	for count > 0 {
		fetches := client.PollFetches(context.Background())
		must(fetches.Err())
		fetches.EachRecord(func(record *kgo.Record) {
			show(record.Offset, record.Key, record.Value)
			count--
		})
	}
	must(client.CommitUncommittedOffsets(context.Background()))
	client.Close()
}

type reading struct {
	count int
	done  context.CancelFunc
}

func (reading) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (reading) Cleanup(sarama.ConsumerGroupSession) error { return nil }
func (r reading) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for record := range claim.Messages() {
		show(record.Offset, record.Key, record.Value)
		session.MarkMessage(record, "")
		if r.count--; r.count == 0 {
			session.Commit()
			r.done()
			return nil
		}
	}
	return nil
}

func saramas(address, topic string, count int, group string) {
	config := sarama.NewConfig()
	config.Version = sarama.MaxVersion
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Consumer.Offsets.AutoCommit.Enable = false
	members, err := sarama.NewConsumerGroup([]string{address}, group, config)
	must(err)
	context_, done := context.WithCancel(context.Background())
	must(members.Consume(context_, []string{topic}, reading{count, done}))
	must(members.Close())
}

func segmentio(address, topic string, count int, group string) {
	reader := kafka.NewReader(kafka.ReaderConfig{Brokers: []string{address}, Topic: topic, GroupID: group,
		StartOffset: kafka.FirstOffset})
	for ; count > 0; count-- {
		record, err := reader.FetchMessage(context.Background())
		must(err)
		show(record.Offset, record.Key, record.Value)
		must(reader.CommitMessages(context.Background(), record))
	}
	must(reader.Close())
}
