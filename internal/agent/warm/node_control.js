// The thread that obeys the agent while the main thread is busy. Whatever it is told, it has the main thread execute, at
// once if that is idle and else in between two of its instructions.
'use strict';

const inspector = require('inspector');
const net = require('net');
const { parentPort } = require('worker_threads');

const session = new inspector.Session();
session.connectToMainThread();

function order(call, done) {
  session.post('Runtime.evaluate', { expression: `process[Symbol.for("forkd.control")].${call}`, returnByValue: true }, (error, answer) => {
    done(error ?? (answer.exceptionDetails && new Error(answer.exceptionDetails.exception?.description ?? answer.exceptionDetails.text)));
  });
}

const line = new net.Socket({ fd: 4, readable: true, writable: true });

function answer(number) {
  return (error) => line.write(error ? `failed ${number} ${String(error.message).split('\n')[0]}\n` : `done ${number}\n`);
}

const orders = {
  interrupt() { order('interrupt()', () => {}); },
  hold(number) { order('hold()', answer(number)); },
  renew(number, seed) { order(`reseed(${JSON.stringify(seed)})`, answer(number)); },
};

let text = '';
line.setEncoding('latin1');
line.on('data', (data) => {
  text += data;
  for (let end; (end = text.indexOf('\n')) >= 0; text = text.slice(end + 1)) {
    const [name, ...rest] = text.slice(0, end).split(' ');
    orders[name]?.(...rest);
  }
});
parentPort.postMessage('ready');
