"""Consumes from a queue. A message id tells how often the message fails: it is rejected, without requeue."""

import json
import os
import sys

import pika

FAILURES = {"ok": 0, "once": 1, "twice": 2}


def on_message(channel, method, properties, body):
    headers = properties.headers or {}
    failures = int(headers.get("amqpretry-count", 0))
    fate = properties.message_id.split("-")[0]
    done = failures >= FAILURES.get(fate, sys.maxsize)
    # Told in one write, and before it is done: if the process is killed next, it is not lost unheard.
    line = {"id": properties.message_id, "failures": failures, "done": done, "body": body.decode(),
            "tenant": headers.get("tenant")}
    os.write(1, (json.dumps(line) + "\n").encode())
    if done:
        channel.basic_ack(method.delivery_tag)
    else:
        channel.basic_nack(method.delivery_tag, requeue=False)


connection = pika.BlockingConnection(pika.URLParameters(sys.argv[1]))
channel = connection.channel()
channel.basic_qos(prefetch_count=20)
channel.basic_consume(sys.argv[2], on_message)
os.write(2, b"pika %s\n" % pika.__version__.encode())
channel.start_consuming()
