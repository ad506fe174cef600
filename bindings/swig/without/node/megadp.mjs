// SPDX-License-Identifier: Apache-2.0
// The part of megadp.h that digits.mjs needs, called through koffi: structs as the header has them, statuses as exceptions. Each call and the
// question for its error run one after the other on Node's thread, as mdp_last_error wants it.
import koffi from 'koffi';

const library = koffi.load(process.env.MEGADP_LIBRARY ?? 'libmegadp.so.0');

export const structs = {
  mdp_error_info: koffi.struct('mdp_error_info', {
    struct_size: 'uint32_t', status: 'int32_t', rank: 'int32_t', bucket: 'int32_t', param: 'int64_t', operation: 'uint64_t',
    text: koffi.array('char', 1024),
  }),
  mdp_tensor: koffi.struct('mdp_tensor', {
    struct_size: 'uint32_t', dtype: 'uint32_t', device_type: 'int32_t', device_id: 'int32_t', ndim: 'int32_t', reserved: 'uint32_t',
    data: 'void *', shape: 'int64_t *', strides: 'int64_t *',
  }),
  mdp_param: koffi.struct('mdp_param', {
    struct_size: 'uint32_t', dtype: 'uint32_t', name: 'const char *', shape: 'int64_t *', ndim: 'int32_t', uses_per_step: 'int32_t',
    param_class: 'uint32_t', placement: 'uint32_t', shard_dim: 'int32_t', shard_stride: 'int32_t', param_group: 'int32_t',
    use_order: 'int32_t', flags: 'uint64_t', tie: 'const char *', sharding: 'uint32_t', reserved: 'uint32_t', cost: 'double',
  }),
  mdp_optimizer_config: koffi.struct('mdp_optimizer_config', {
    struct_size: 'uint32_t', rule: 'uint32_t', lr: 'double', beta1: 'double', beta2: 'double', eps: 'double', weight_decay: 'double',
    max_grad_norm: 'double', param_groups: 'void *', param_group_count: 'uint64_t', flags: 'uint64_t',
    max_grad_value: 'double', norm: 'uint32_t', first_param_group: 'uint32_t', momentum: 'double',
    state: 'const char *', param_states: 'void *', param_state_count: 'uint64_t', average_decay: 'double', state_dtype: 'uint32_t',
    reserved: 'uint32_t', seed: 'uint64_t',
  }),
};

const lastError = library.func('const char *mdp_last_error()');
const lastErrorInfo = library.func('int32_t mdp_last_error_info(_Inout_ mdp_error_info *out)');
const statusName = library.func('const char *mdp_status_name(int32_t status)');
const PENDING = 1, SLICE = 50_000_000n;
export const dtype = {F32: 2, F64: 5};
const op = {SUM: 0, AVG: 1};
const SET_LR = 1; // MDP_OPTIMIZER_SET_LR: lr is meant literally, also 0

export class MegaDPError extends Error {
  constructor(status) {
    super(`${statusName(status)}: ${lastError()}`);
    const info = {struct_size: koffi.sizeof('mdp_error_info'), status: 0, rank: 0, bucket: 0, param: 0, operation: 0, text: ''};
    lastErrorInfo(info);
    Object.assign(this, {code: status, rank: info.rank, bucket: info.bucket, param: Number(info.param), operation: Number(info.operation)});
  }
}

function checked(prototype) {
  const call = library.func(prototype);
  return (...args) => {
    const status = call(...args);
    if (status < 0) throw new MegaDPError(status);
    return status;
  };
}

const c = {
  commCreate: checked('int32_t mdp_comm_create(void *config, void *id, _Out_ void **out)'),
  commRank: library.func('int32_t mdp_comm_rank(void *comm)'),
  commSize: library.func('int32_t mdp_comm_size(void *comm)'),
  commDestroy: library.func('void mdp_comm_destroy(void *comm)'),
  allReduce: checked('int32_t mdp_all_reduce(void *comm, mdp_tensor *from, mdp_tensor *to, uint32_t op, void *stream, void *out)'),
  barrier: checked('int32_t mdp_barrier(void *comm, _Out_ void **out)'),
  register: checked('int32_t mdp_buffer_register(void *comm, void *grid, void *config, mdp_param *params, size_t count, _Out_ void **out)'),
  bufferDestroy: library.func('void mdp_buffer_destroy(void *buffer)'),
  paramRead: checked('int32_t mdp_param_read(void *buffer, size_t param, mdp_tensor *to, void *stream)'),
  paramWrite: checked('int32_t mdp_param_write(void *buffer, size_t param, mdp_tensor *from, void *stream)'),
  gradPut: checked('int32_t mdp_grad_put(void *buffer, size_t param, mdp_tensor *grad, uint64_t flags, void *stream)'),
  gradSync: checked('int32_t mdp_grad_sync(void *buffer, void *stream, _Out_ void **out)'),
  optimizerCreate: checked('int32_t mdp_optimizer_create(void *buffer, mdp_optimizer_config *config, _Out_ void **out)'),
  optimizerStep: checked('int32_t mdp_optimizer_step(void *optimizer, void *config, void *report, _Out_ void **out)'),
  optimizerDestroy: library.func('void mdp_optimizer_destroy(void *optimizer)'),
  requestWait: checked('int32_t mdp_request_wait(void *request, uint64_t timeout_ns)'),
  requestFree: library.func('void mdp_request_free(void *request)'),
};

/** The handle that `call` writes. */
function made(call, ...args) {
  const out = [null];
  call(...args, out);
  return out[0];
}

// What an array is and has by itself, whatever its class or prototype says.
const itself = (name) => Object.getOwnPropertyDescriptor(Object.getPrototypeOf(Float32Array.prototype), name).get;
const kindOf = itself(Symbol.toStringTag), lengthOf = itself('length');

/** A tensor over a Float32Array or Float64Array, which must stay untouched until the call has returned. It never claims more elements than
 * the array has: where they do not fit the parameter, the library says so. */
function tensor(array, wanted) {
  const kind = kindOf.call(array);
  if (kind !== 'Float32Array' && kind !== 'Float64Array') {
    throw new TypeError(`an array must be a Float32Array or a Float64Array, not ${array?.constructor?.name ?? array}`);
  }
  const length = lengthOf.call(array);
  const shape = wanted?.reduce((product, size) => product * size, 1) === length ? wanted : [length];
  return {struct_size: koffi.sizeof('mdp_tensor'), dtype: kind === 'Float64Array' ? dtype.F64 : dtype.F32, device_type: 0,
    device_id: 0, ndim: shape.length, reserved: 0, data: array, shape, strides: null};
}

/** koffi would cut a fraction off. */
function index(i) {
  if (!Number.isSafeInteger(i) || i < 0) throw new TypeError(`a parameter's number must be a whole number from 0, not ${i}`);
  return i;
}

/** Waits in slices, so that timers, signals and other promises get their turn. */
async function finished(request) {
  try {
    while (c.requestWait(request, SLICE) === PENDING) await new Promise((resolve) => setImmediate(resolve));
  } finally {
    c.requestFree(request);
  }
}

/** This rank, its parameters (name to shape, in the order of the forward pass) and AdamW; all collective over the ranks. */
export class Training {
  constructor(shapes, {lr, weightDecay, ...unknown}) {
    if (Object.keys(unknown).length > 0) throw new TypeError(`there is no option ${Object.keys(unknown)[0]}; there are lr and weightDecay`);
    for (const [name, value] of Object.entries({lr, weightDecay})) {
      if (typeof value !== 'number') throw new TypeError(`${name} must be a number, not ${value}`);
    }
    this.shapes = Object.values(shapes);
    this.comm = made(c.commCreate, null, null);
    this.rank = c.commRank(this.comm);
    this.size = c.commSize(this.comm);
    const params = Object.entries(shapes).map(([name, shape]) => ({struct_size: koffi.sizeof('mdp_param'), dtype: 0, name, shape,
      ndim: shape.length, uses_per_step: 0, param_class: 0, placement: 0, shard_dim: 0, shard_stride: 0, param_group: 0, use_order: 0,
      flags: 0, tie: null, sharding: 0, reserved: 0, cost: 0}));
    this.buffer = made(c.register, this.comm, null, null, params, params.length);
    this.optimizer = made(c.optimizerCreate, this.buffer, {struct_size: koffi.sizeof('mdp_optimizer_config'), rule: 0, lr, beta1: 0, beta2: 0,
      eps: 0, weight_decay: weightDecay, max_grad_norm: 0, param_groups: null, param_group_count: 0, flags: SET_LR,
      max_grad_value: 0, norm: 0, first_param_group: 0, momentum: 0, state: null, param_states: null, param_state_count: 0,
      average_decay: 0, state_dtype: 0, reserved: 0, seed: 0});
  }

  /** Copies parameter i out of the library's memory, after the last step. */
  read(i, to) { c.paramRead(this.buffer, index(i), tensor(to, this.shapes[i]), null); }
  /** Gives parameter i new values, alike on all ranks. */
  write(i, from) { c.paramWrite(this.buffer, index(i), tensor(from, this.shapes[i]), null); }
  /** The gradient of parameter i; leaves at once when its bucket is full. */
  put(i, grad) { c.gradPut(this.buffer, index(i), tensor(grad, this.shapes[i]), 0, null); }
  /** Ends backward, as step() would, but without holding up what else runs on Node's thread. */
  async sync() { await finished(made(c.gradSync, this.buffer, null)); }
  /** Updates the parameters; they are gathered while the next forward begins. */
  step() { c.requestFree(made(c.optimizerStep, this.optimizer, null, null)); }
  /** Over when all ranks have called it. */
  async barrier() { await finished(made(c.barrier, this.comm)); }
  /** The mean over the ranks. */
  mean(value) {
    const array = Float64Array.of(value);
    c.allReduce(this.comm, tensor(array, [1]), tensor(array, [1]), op.AVG, null, null);
    return array[0];
  }

  close() {
    for (const [destroy, handle] of [['optimizerDestroy', 'optimizer'], ['bufferDestroy', 'buffer'], ['commDestroy', 'comm']]) {
      c[destroy](this[handle]);
      this[handle] = null;
    }
  }
}
