// Consumes from a queue, fails each message once, and succeeds with it when it has waited: the delayed retry of rascal's README
// ("Chaining Recovery Strategies", steps 3 to 7), configured as in its examples/advanced/config.js.
//
//   node consumer.js '{"uri": …, "queue": …, "arguments": …, "exchanges": …, "retry": …, "waiting": …, "dead": …,
//     "prefetch": …, "channels": …}'
//
// It says "arrived" when it has its first message, and waits for a line before it begins. From then on each call is a line: the
// message's id, and whether it succeeded. It ends with its input.
'use strict';

const { BrokerAsPromised, withDefaultConfig } = require('rascal');

const given = JSON.parse(process.argv[2]);
const { queue, retry, dead } = given;
const [delayExchange, retryExchange, deadExchange] = given.exchanges;

// Publications are persistent, mandatory and confirmed by default.
const config = withDefaultConfig({
  vhosts: {
    '/': {
      connection: { url: given.uri },
      exchanges: given.exchanges,
      queues: {
        [queue]: { options: { arguments: given.arguments } },
        [retry]: { options: { arguments: given.waiting } },
        [dead]: { options: { arguments: { 'x-queue-type': given.arguments['x-queue-type'] } } },
      },
      bindings: [
        `${delayExchange}[wait] -> ${retry}`,
        `${retryExchange}[${queue}.#] -> ${queue}`, // the key that a forwarded message has as a CC
        `${deadExchange}[${dead}] -> ${dead}`,
      ],
      publications: { retry: { exchange: delayExchange, options: { CC: ['wait'] } } },
      publicationChannelPools: { confirmPool: { max: given.channels, min: 5, autostart: true } },
      subscriptions: { consumer: { queue, prefetch: given.prefetch } },
    },
  },
});

// As in the example.
const deferredRetry = [{ strategy: 'forward', attempts: 10, publication: 'retry', xDeathFix: true }, { strategy: 'nack' }];

let lines = []; // a write for each would hold up the only thread there is
setInterval(() => {
  if (lines.length === 0) return;
  process.stdout.write(lines.join(''));
  lines = [];
}, 5);

let held = []; // messages that arrive before all contenders are ready
const handle = (message, ackOrNack) => {
  const waited = message.properties.headers.rascal.recovery?.[queue]?.forwarded > 0;
  lines.push(`${message.properties.messageId} ${waited}\n`);
  if (waited) ackOrNack();
  else ackOrNack(new Error('fails once'), deferredRetry);
};

// "It's very important that you handle errors": unhandled ones end the process.
const complain = (where) => (err) => console.error(where, err.message);

(async () => {
  const broker = await BrokerAsPromised.create(config);
  broker.on('error', complain('broker'));
  const subscription = await broker.subscribe('consumer');
  subscription
    .on('message', (message, content, ackOrNack) => {
      if (!held) {
        handle(message, ackOrNack);
        return;
      }
      if (held.push([message, ackOrNack]) === 1) process.stdout.write('arrived\n');
    })
    .on('invalid_content', complain('content'))
    .on('redeliveries_exceeded', complain('redeliveries'))
    .on('error', complain('subscription'));

  process.stdin.once('data', () => {
    const first = held;
    held = undefined;
    first.forEach(([message, ackOrNack]) => handle(message, ackOrNack));
  });
  process.stdin.on('end', async () => {
    setTimeout(process.exit, 5000); // the broker may be gone
    await broker.shutdown();
    process.exit();
  });
})().catch((err) => {
  console.error(err);
  process.exit(1);
});
