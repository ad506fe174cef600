// SPDX-License-Identifier: Apache-2.0
//! Attention of a sequence that is cut over ranks against that of the whole sequence in f64, forward and backward; what a block tells; functions that
//! fail; what is refused.
mod ranks;

use megadp::cp::{Array, ArrayMut, Attention, Block, Computed, Form, Wanted, plain_attention};
use megadp::{Code, Comm, Error};
use ranks::{alone, threads};
use std::panic::{AssertUnwindSafe, catch_unwind};

const BATCH: usize = 2;
const SEQUENCE: usize = 12;
const HEADS: usize = 6;
const SIZE: usize = 4;
const BOUNDS: [u64; 5] = [0, 5, 5, 7, 12];

/// The whole sequence: [batch, positions, heads, head_dim], row-major.
#[derive(Clone)]
struct Whole {
    data: Vec<f32>,
    heads: usize,
}

impl Whole {
    fn new(heads: usize, salt: usize) -> Self {
        let at = |i: usize| ((3 * i + 7 * salt) as f32).sin();
        Whole { data: (0..BATCH * SEQUENCE * heads * SIZE).map(at).collect(), heads }
    }

    fn zeros(heads: usize) -> Self {
        Whole { data: vec![0.0; BATCH * SEQUENCE * heads * SIZE], heads }
    }

    fn row(&self, b: usize, position: usize, head: usize) -> std::ops::Range<usize> {
        let first = ((b * SEQUENCE + position) * self.heads + head) * SIZE;
        first..first + SIZE
    }

    fn dot(&self, at: (usize, usize, usize), other: &Self, other_at: (usize, usize, usize)) -> f64 {
        let pairs = self.row(at.0, at.1, at.2).zip(other.row(other_at.0, other_at.1, other_at.2));
        pairs.map(|(i, j)| f64::from(self.data[i]) * f64::from(other.data[j])).sum()
    }

    fn add(&mut self, at: (usize, usize, usize), factor: f64, other: &Self, other_at: (usize, usize, usize)) {
        for (i, j) in self.row(at.0, at.1, at.2).zip(other.row(other_at.0, other_at.1, other_at.2)) {
            self.data[i] += (factor * f64::from(other.data[j])) as f32;
        }
    }

    fn part(&self, positions: &[usize]) -> Vec<f32> {
        let row = self.heads * SIZE;
        let rows = (0..BATCH).flat_map(|b| positions.iter().map(move |position| (b * SEQUENCE + position) * row));
        rows.flat_map(|first| self.data[first..first + row].iter().copied()).collect()
    }
}

#[derive(Clone, Copy, Debug)]
struct Case {
    form: Form,
    causal: bool,
    packed: bool,
    kv_heads: usize,
    strided: bool,
}

impl Case {
    fn attention(&self) -> Attention {
        let attention = Attention::new().form(self.form);
        let attention = if self.causal { attention.causal() } else { attention };
        if self.packed { attention.bounds(BOUNDS) } else { attention }
    }

    fn sees(&self, query: usize, key: usize) -> bool {
        let sequence = |at: usize| BOUNDS.iter().filter(|&&bound| bound <= at as u64).count();
        (!self.causal || key <= query) && (!self.packed || sequence(query) == sequence(key))
    }

    /// out, lse and the gradients of q, k and v, by the derivative of a softmax as such.
    fn oracle(&self, [q, k, v, grad_out]: &[Whole; 4]) -> ([Whole; 4], Vec<f32>) {
        let (mut out, mut dq, mut dk, mut dv) =
            (Whole::zeros(HEADS), Whole::zeros(HEADS), Whole::zeros(self.kv_heads), Whole::zeros(self.kv_heads));
        let (scale, mut lse) = (1.0 / (SIZE as f64).sqrt(), Vec::new());
        for at in (0..BATCH * SEQUENCE * HEADS).map(|i| (i / HEADS / SEQUENCE, i / HEADS % SEQUENCE, i % HEADS)) {
            let keys = (0..SEQUENCE).filter(|&key| self.sees(at.1, key)).map(|key| (at.0, key, at.2 * self.kv_heads / HEADS));
            let keys: Vec<_> = keys.collect();
            let weights: Vec<f64> = keys.iter().map(|&key| (scale * q.dot(at, k, key)).exp()).collect();
            let sum: f64 = weights.iter().sum();
            lse.push(sum.ln() as f32);
            let changes: Vec<f64> = keys.iter().map(|&key| grad_out.dot(at, v, key)).collect();
            let mean: f64 = weights.iter().zip(&changes).map(|(weight, change)| weight / sum * change).sum();
            for (i, &key) in keys.iter().enumerate() {
                let weight = weights[i] / sum;
                let change = scale * weight * (changes[i] - mean);
                out.add(at, weight, v, key);
                dv.add(key, weight, grad_out, at);
                dq.add(at, change, k, key);
                dk.add(key, change, q, at);
            }
        }
        ([out, dq, dk, dv], lse)
    }
}

/// Memory of an array, dense or with gaps, and its strides.
struct Memory {
    data: Vec<f32>,
    strides: Vec<i64>,
    shape: Vec<usize>,
}

impl Memory {
    fn new(elements: &[f32], shape: &[usize], strided: bool) -> Self {
        let step = if strided { 3 } else { 1 };
        let data = elements.iter().flat_map(|&element| (0..step).map(move |i| if i == 0 { element } else { f32::NAN })).collect();
        let strides = (0..shape.len()).map(|d| (step * shape[d + 1..].iter().product::<usize>()) as i64).collect();
        Memory { data, strides, shape: shape.to_vec() }
    }

    fn read(&self) -> Array<'_> {
        Array::new(megadp::Strided::new(&self.data, 0, &self.strides), &self.shape).unwrap()
    }

    fn written(&mut self) -> ArrayMut<'_> {
        ArrayMut::strided(&mut self.data, 0, &self.strides, &self.shape).unwrap()
    }

    fn check(&self, expected: &[f32], what: &str) {
        let step = self.data.len() / expected.len();
        let off = self.data.iter().step_by(step).zip(expected).map(|(found, expected)| (found - expected).abs()).fold(0.0, f32::max);
        assert!(off < 1e-5, "{what} is off by {off}");
        assert!(self.data.iter().enumerate().all(|(i, value)| i % step == 0 || value.is_nan()), "{what}: what lies between was written");
    }
}

/// Whether a block's arrays are what the whole has where the block says that it is.
fn check_places(block: &Block<'_>, [q, k, v, _]: &[Whole; 4]) {
    let kv_begin = block.head_begin * k.heads / q.heads;
    for (view, whole, begin, first_head) in
        [(&block.q, q, block.q_begin, block.head_begin), (&block.k, k, block.k_begin, kv_begin), (&block.v, v, block.k_begin, kv_begin)]
    {
        let (shape, found) = (view.shape(), view.elements::<f32>().unwrap());
        for (i, row) in found.chunks(SIZE).enumerate() {
            let (b, position, head) = (i / shape[2] / shape[1], i / shape[2] % shape[1], i % shape[2]);
            assert_eq!(row, &whole.data[whole.row(b, begin + position, first_head + head)]);
        }
        assert_eq!(found.len(), shape.iter().product::<usize>());
    }
}

fn equal(comm: &Comm, case: Case) {
    let attention = case.attention();
    let part = attention.part(comm.size().unwrap(), comm.rank().unwrap(), SEQUENCE).unwrap();
    let positions: Vec<usize> = part.into_iter().flatten().collect();
    let all = [(HEADS, 1), (case.kv_heads, 2), (case.kv_heads, 3), (HEADS, 4)].map(|(heads, salt)| Whole::new(heads, salt));
    let (expected, lse) = case.oracle(&all);
    let shape = |heads| [BATCH, positions.len(), heads, SIZE];
    let memory = |whole: &Whole| Memory::new(&whole.part(&positions), &shape(whole.heads), case.strided);
    let empty = |heads| Memory::new(&vec![0.0; BATCH * positions.len() * heads * SIZE], &shape(heads), case.strided);
    let [q, k, v, grad_out] = all.each_ref().map(memory);
    let (mut out, mut found_lse) =
        (empty(HEADS), Memory::new(&vec![0.0; BATCH * positions.len() * HEADS], &shape(HEADS)[..3], case.strided));
    let (mut dq, mut dk, mut dv) = (empty(HEADS), empty(case.kv_heads), empty(case.kv_heads));
    let function = |block: Block<'_>| {
        check_places(&block, &all);
        plain_attention(block, None)
    };
    let (q, k, v, grad_out) = (q.read(), k.read(), v.read(), grad_out.read());
    attention.forward(&q, &k, &v).run(comm, &mut out.written(), &mut found_lse.written(), function).unwrap();
    let backward = attention.backward(&q, &k, &v, &out.read(), &found_lse.read(), &grad_out).run(
        comm,
        &mut dq.written(),
        &mut dk.written(),
        &mut dv.written(),
        function,
    );
    backward.unwrap();
    let of_lse = |b: usize| positions.iter().flat_map(move |at| (0..HEADS).map(move |h| (b * SEQUENCE + at) * HEADS + h));
    found_lse.check(&(0..BATCH).flat_map(of_lse).map(|i| lse[i]).collect::<Vec<_>>(), "lse");
    for ((found, expected), what) in [&out, &dq, &dk, &dv].into_iter().zip(&expected).zip(["out", "grad_q", "grad_k", "grad_v"]) {
        found.check(&expected.part(&positions), &format!("{what} of {case:?} on {} ranks", comm.size().unwrap()));
    }
}

#[test]
fn cut_attention_is_that_of_the_whole_sequence() {
    for size in 1..=3 {
        threads(size, |comm| {
            for (causal, packed) in [(false, false), (false, true), (true, false), (true, true)] {
                for (form, kv_heads) in [(Form::Ring, HEADS), (Form::Ring, 2), (Form::AllToAll, HEADS), (Form::Auto, 3)] {
                    equal(&comm, Case { form, causal, packed, kv_heads, strided: packed || kv_heads == 2 });
                }
            }
        });
    }
}

/// Forward, or backward, of small arrays.
fn small(comm: &Comm, backward: bool, function: impl FnMut(Block<'_>) -> Computed) -> megadp::Result<()> {
    let (data, lse, shape) = (vec![0.5f32; 24], vec![0f32; 6], [1, 3, 2, 4]);
    let (mut a, mut b, mut c, mut to_lse) = (data.clone(), data.clone(), data.clone(), lse.clone());
    let (x, lse) = (Array::new(&data, &shape)?, Array::new(&lse, &shape[..3])?);
    let attention = Attention::new().form(Form::Ring);
    let (mut a, mut b, mut c) = (ArrayMut::new(&mut a, &shape)?, ArrayMut::new(&mut b, &shape)?, ArrayMut::new(&mut c, &shape)?);
    if backward {
        attention.backward(&x, &x, &x, &x, &lse, &x).run(comm, &mut a, &mut b, &mut c, function)
    } else {
        attention.forward(&x, &x, &x).run(comm, &mut a, &mut ArrayMut::new(&mut to_lse, &shape[..3])?, function)
    }
}

#[test]
fn a_function_that_fails_on_one_rank_fails_on_all_and_the_communicator_stays() {
    threads(3, |comm| {
        let mine = comm.rank().unwrap() == 2;
        for backward in [false, true] {
            let mut called = 0;
            let error = small(&comm, backward, |block| {
                called += 1;
                if mine && called == 2 { Err("out of luck".into()) } else { plain_attention(block, None) }
            });
            let error = error.unwrap_err();
            assert_eq!(error.code, Code::Aborted, "{error}");
            assert_eq!(error.text.ends_with("on: out of luck"), mine, "{error}");
            assert!(mine || error.text.contains("rank 2: the attention function"), "{error}");
            let panicked = catch_unwind(AssertUnwindSafe(|| {
                small(&comm, backward, |block| if mine { panic!("in a block") } else { plain_attention(block, None) })
            }));
            match panicked {
                Err(panic) => assert!(mine && panic.downcast_ref::<&str>() == Some(&"in a block")),
                Ok(told) => assert!(!mine && told.unwrap_err().code == Code::Aborted),
            }
            small(&comm, backward, |block| plain_attention(block, None)).unwrap();
        }
        assert!(comm.failure().unwrap().is_none());
    });
}

#[test]
fn views_refuse_what_they_are_not() {
    let (comm, mut called) = (alone(), 0);
    let told = |error: Error, words: &str| assert!(error.code == Code::Invalid && error.text.contains(words), "{error}");
    small(&comm, false, |mut block| {
        called += 1;
        told(block.q.elements::<f64>().unwrap_err(), "asked for were F64");
        assert!(matches!(block.q.elements::<f32>()?, std::borrow::Cow::Borrowed(_)));
        assert_eq!((block.q.as_raw().ndim, block.keys_of(2)), (4, 0..3));
        let Wanted::Outputs { out, lse } = &mut block.wanted else { panic!("forward writes outputs") };
        told(out.write(&[0.0; 23]).unwrap_err(), "there are 23 elements; the array has shape [1, 3, 2, 4]");
        assert_eq!((lse.shape(), out.as_raw().ndim), (vec![1, 3, 2], 4));
        plain_attention(block, Some(0.5))
    })
    .unwrap();
    assert_eq!(called, 1);
    let error = small(&comm, false, |_| Ok(comm.barrier()?)).unwrap_err();
    assert!(error.code == Code::Aborted && error.text.contains("within a function of the caller's"), "{error}");
}

#[test]
fn what_is_refused_is_named() {
    let comm = alone();
    let (data, mut out, mut lse) = (vec![0f32; 24], vec![0f32; 24], vec![0f32; 6]);
    let x = Array::new(&data, &[1, 3, 2, 4]).unwrap();
    let refused = |attention: Attention, k: &Array<'_>, out: &mut [f32], lse: &mut [f32], words: &str| {
        let (mut out, mut lse) = (ArrayMut::new(out, &[1, 3, 2, 4]).unwrap(), ArrayMut::new(lse, &[1, 3, 2]).unwrap());
        let error = attention.forward(&x, k, k).run(&comm, &mut out, &mut lse, |block| plain_attention(block, None)).unwrap_err();
        assert!(error.code == Code::Invalid && error.text.contains(words), "{error}");
    };
    let turned = Array::new(&data, &[1, 2, 3, 4]).unwrap();
    refused(Attention::new(), &turned, &mut out, &mut lse, "k has shape [1,2,3,4]");
    refused(Attention::new().bounds([]), &x, &mut out, &mut lse, "config.bound_count is 0");
    refused(Attention::new().bounds([0, 2]), &x, &mut out, &mut lse, "config.bounds[1] is 2");
    refused(Attention::new().bounds([0, u64::MAX]), &x, &mut out, &mut lse, "bounds is 18446744073709551615");
    let error = Attention::new().causal().part(3, 1, 15).unwrap_err();
    assert!(error.code == Code::Invalid && error.text.contains("12 or 18 would do"), "{error}");
    assert!(Attention::new().part(3, 3, 12).unwrap_err().text.contains("rank is 3"));
}

#[cfg(feature = "half")]
#[test]
fn bf16_arrays() {
    use half::bf16;
    let (comm, value) = (alone(), bf16::from_f32(0.5));
    let (data, shape, mut out, mut lse) = (vec![value; 24], [1, 3, 2, 4], vec![bf16::ZERO; 24], vec![0f32; 6]);
    let x = Array::new(&data, &shape).unwrap();
    let (mut to_out, mut to_lse) = (ArrayMut::new(&mut out, &shape).unwrap(), ArrayMut::new(&mut lse, &shape[..3]).unwrap());
    Attention::new().forward(&x, &x, &x).run(&comm, &mut to_out, &mut to_lse, |block| plain_attention(block, None)).unwrap();
    assert_eq!(out, data);
    assert!(lse.iter().all(|lse| (lse - (0.5 + 3f32.ln())).abs() < 1e-6), "{lse:?}");
}
