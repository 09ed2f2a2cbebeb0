// See programs.py: ADDRESS TOPIC COUNT GROUP CLIENT.
const [address, topic, many, group, client] = process.argv.slice(2)
let count = Number(many)

function show(offset, key, value) {
  console.log(`${offset} ${key} ${value ?? 'NULL'}`)
  count -= 1
}

async function kafkajs() {
  const { default: { Kafka, logLevel } } = await import('kafkajs')
  const consumer = new Kafka({ brokers: [address], logLevel: logLevel.WARN }).consumer({ groupId: group })
  await consumer.connect()
  await consumer.subscribe({ topics: [topic], fromBeginning: true })
  await new Promise(resolve => consumer.run({
    autoCommit: false,
    eachMessage: async ({ partition, message }) => {
      show(message.offset, message.key, message.value)
      if (count === 0) {
        await consumer.commitOffsets([{ topic, partition, offset: String(Number(message.offset) + 1) }])
        resolve()
      }
    }
  }))
  await consumer.disconnect()
}

async function platformatic() {
  const { Consumer, stringDeserializers } = await import('@platformatic/kafka')
  const consumer = new Consumer({ groupId: group, clientId: 'read', bootstrapBrokers: [address], deserializers: stringDeserializers })
  const stream = await consumer.consume({ topics: [topic], mode: 'earliest', autocommit: false })
  for await (const message of stream) {
    show(message.offset, message.key, message.value)
    if (count === 0) {
      await message.commit()
      break
    }
  }
  await consumer.close(true)
}

await { kafkajs, platformatic }[client]()
process.exit(0)
