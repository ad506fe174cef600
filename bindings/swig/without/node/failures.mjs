// SPDX-License-Identifier: Apache-2.0
// What test_without.py runs with two ranks: its structs against abi.json, and a missing gradient.
import {readFileSync} from 'node:fs';

import koffi from 'koffi';

import {MegaDPError, structs, Training} from './megadp.mjs';

const abi = JSON.parse(readFileSync(process.argv[2], 'utf8')).structs;
for (const [name, type] of Object.entries(structs)) {
  const {size, fields} = abi[name];
  if (koffi.sizeof(type) !== size) throw new Error(`${name} has ${koffi.sizeof(type)} bytes, not ${size}`);
  for (const [field, offset] of Object.entries(fields)) {
    if (koffi.offsetof(type, field) !== offset) throw new Error(`${name}.${field} is at ${koffi.offsetof(type, field)}, not ${offset}`);
  }
}
/** The sentence of what `call` throws. */
function refused(call) {
  try {
    call();
  } catch (error) {
    return error.message;
  }
  throw new Error('nothing was thrown');
}

for (const options of [{weightDecay: 0}, {lr: 0.1, weightDecay: 0, learningRate: 1}]) console.log(refused(() => new Training({w: [4]}, options)));
const training = new Training({w: [3, 4], b: [4]}, {lr: 0.1, weightDecay: 0});
for (const array of [Int32Array.of(1, 2, 3, 4), new Uint8Array(4), [1, 2, 3, 4]]) {
  console.log(refused(() => training.write(1, array)) === refused(() => training.read(1, array)), refused(() => training.put(1, array)));
}
for (const i of [1.5, -1, '1', undefined]) console.log(refused(() => training.write(i, new Float32Array(4))));
class Long extends Float32Array {
  get length() { return 4; }
}
try {
  training.write(1, new Long(2)); // of its two elements nothing but them is read
  throw new Error('no failure');
} catch (error) {
  if (!(error instanceof MegaDPError)) throw error;
}
const wide = Object.setPrototypeOf(Float64Array.of(1, 2, 3, 4), Float32Array.prototype);
training.write(1, wide);
training.read(1, wide);
console.log(wide.join());
training.write(1, new Float32Array(4));
training.put(1, new Float32Array(4));
if (training.rank === 0) training.put(0, new Float32Array(12));
for (const call of [() => training.sync(), async () => training.put(7, new Float32Array(1)),
  async () => training.put(1, new Float32Array(3))]) {
  try {
    await call();
    throw new Error('no failure');
  } catch (error) {
    if (!(error instanceof MegaDPError)) throw error;
    console.log(error.code, error.param, error.rank, error.message.includes("'w'"));
  }
}
await training.barrier(); // nobody ends before all have been told
training.close();
