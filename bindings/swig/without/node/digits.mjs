// SPDX-License-Identifier: Apache-2.0
// Trains a two-layer network on handwritten digits, on any number of ranks: tests/bindings/README.md describes the model.
// usage: megadp run -n 2 node digits.mjs digits.csv      (prints the loss of each step)
import {readFileSync, writeSync} from 'node:fs';

import {Training} from './megadp.mjs';

const STEPS = 100, BATCH = 64, PIXELS = 64, HIDDEN = 32, CLASSES = 10;
const W1 = 0, B1 = 1, W2 = 2, B2 = 3;
const SHAPES = {w1: [PIXELS, HIDDEN], b1: [HIDDEN], w2: [HIDDEN, CLASSES], b2: [CLASSES]};

const zeros = () => Object.values(SHAPES).map((shape) => new Float32Array(shape.reduce((product, size) => product * size, 1)));

/** The same weights on every rank. */
function initialize(training) {
  let state = 1;
  const values = zeros();
  for (const [i, rows] of [[W1, PIXELS], [W2, HIDDEN]]) {
    for (let at = 0; at < values[i].length; ++at) {
      state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
      values[i][at] = (state / 2 ** 32 - 0.5) * 2 / Math.sqrt(rows);
    }
    training.write(i, values[i]);
  }
}

/** The loss of one row; leaves the hidden layer in h and the loss's derivative by the logits, divided by count, in errors. */
function forward(params, pixels, digit, h, errors, count) {
  for (let j = 0; j < HIDDEN; ++j) {
    let sum = params[B1][j];
    for (let i = 0; i < PIXELS; ++i) sum += pixels[i] * params[W1][i * HIDDEN + j];
    h[j] = Math.max(sum, 0);
  }
  let total = 0;
  for (let c = 0; c < CLASSES; ++c) {
    errors[c] = params[B2][c];
    for (let j = 0; j < HIDDEN; ++j) errors[c] += h[j] * params[W2][j * CLASSES + c];
    total += Math.exp(errors[c]);
  }
  const loss = Math.log(total) - errors[digit];
  for (let c = 0; c < CLASSES; ++c) errors[c] = (Math.exp(errors[c]) / total - (c === digit ? 1 : 0)) / count;
  return loss;
}

/** Forward and backward over some rows. Gradients leave as soon as they are known, the last layer's first. Returns the mean loss. */
function trainStep(training, params, rows) {
  params.forEach((param, i) => training.read(i, param)); // waits until the step before has brought it
  const grads = zeros();
  const states = rows.map(() => ({h: new Float64Array(HIDDEN), errors: new Float64Array(CLASSES)}));
  let loss = 0;
  rows.forEach(({pixels, digit}, k) => {
    const {h, errors} = states[k];
    loss += forward(params, pixels, digit, h, errors, rows.length);
    for (let c = 0; c < CLASSES; ++c) {
      grads[B2][c] += errors[c];
      for (let j = 0; j < HIDDEN; ++j) grads[W2][j * CLASSES + c] += h[j] * errors[c];
    }
  });
  training.put(B2, grads[B2]);
  training.put(W2, grads[W2]);
  rows.forEach(({pixels}, k) => {
    const {h, errors} = states[k];
    for (let j = 0; j < HIDDEN; ++j) {
      if (h[j] <= 0) continue;
      let error = 0;
      for (let c = 0; c < CLASSES; ++c) error += errors[c] * params[W2][j * CLASSES + c];
      grads[B1][j] += error;
      for (let i = 0; i < PIXELS; ++i) grads[W1][i * HIDDEN + j] += pixels[i] * error;
    }
  });
  training.put(B1, grads[B1]);
  training.put(W1, grads[W1]);
  return loss / rows.length;
}

const data = readFileSync(process.argv[2], 'ascii').trim().split('\n').map((line) => {
  const numbers = line.split(',').map(Number);
  return {pixels: Float32Array.from(numbers.slice(0, PIXELS), (pixel) => pixel / 16), digit: numbers[PIXELS]};
});
const training = new Training(SHAPES, {lr: 1e-2, weightDecay: 0.01});
initialize(training);
const params = zeros();
const begin = Math.floor(BATCH * training.rank / training.size), end = Math.floor(BATCH * (training.rank + 1) / training.size);
for (let t = 0; t < STEPS; ++t) {
  const rows = Array.from({length: end - begin}, (_, k) => data[(BATCH * t + begin + k) % data.length]);
  const loss = trainStep(training, params, rows);
  await training.sync();
  training.step();
  const mean = training.mean(loss);
  if (training.rank === 0) writeSync(1, `${mean.toFixed(9)}\n`);  // console.log says nothing of a full disk
}
training.close();
