// Consumes from a queue. A message id tells how often the message fails: it is rejected, without requeue.
'use strict'

const amqp = require('amqplib')
const fs = require('fs')

const failuresOf = { ok: 0, once: 1, twice: 2 }

async function main () {
  const [uri, queue] = process.argv.slice(2)
  const connection = await amqp.connect(uri)
  const channel = await connection.createChannel()
  await channel.prefetch(20)
  await channel.consume(queue, (message) => {
    const headers = message.properties.headers || {}
    const id = message.properties.messageId
    const failures = Number(headers['amqpretry-count'] || 0)
    const needed = failuresOf[id.split('-')[0]]
    const done = needed !== undefined && failures >= needed
    // Told in one write, and before it is done: if the process is killed next, it is not lost unheard.
    fs.writeSync(1, JSON.stringify({
      id, failures, done, body: message.content.toString(), tenant: headers.tenant
    }) + '\n')
    if (done) channel.ack(message)
    else channel.nack(message, false, false)
  })
  fs.writeSync(2, 'amqplib ' + require('amqplib/package.json').version + '\n')
}

main().catch((err) => { console.error(err); process.exit(1) })
