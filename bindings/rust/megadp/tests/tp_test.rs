// SPDX-License-Identifier: Apache-2.0
//! Layers cut over ranks against the whole layer, and the operators against what they say. Numbers are small multiples of 1/4, so that
//! products and sums are exact however they are cut.
mod ranks;

use megadp::tp::{Array, ArrayMut, Grad, Linear, Region};
use megadp::{Axes, Buffer, Code, Comm, DType, Grid, Param, Strided};
use ranks::{alone, small, threads};

/// Row-major, of two dimensions.
#[derive(Clone, Debug, PartialEq)]
struct Matrix {
    data: Vec<f32>,
    rows: usize,
    columns: usize,
}

impl Matrix {
    fn new(rows: usize, columns: usize, at: impl Fn(usize, usize) -> f32) -> Self {
        let data = (0..rows * columns).map(|i| at(i / columns, i % columns)).collect();
        Matrix { data, rows, columns }
    }

    fn small(rows: usize, columns: usize, salt: usize) -> Self {
        Self::new(rows, columns, |row, column| ((row * 7 + column * 3 + salt * 5) % 9) as f32 / 4.0 - 1.0)
    }

    fn at(&self, row: usize, column: usize) -> f32 {
        self.data[row * self.columns + column]
    }

    fn turned(&self) -> Self {
        Self::new(self.columns, self.rows, |row, column| self.at(column, row))
    }

    fn times(&self, other: &Self) -> Self {
        Self::new(self.rows, other.columns, |row, column| (0..self.columns).map(|k| self.at(row, k) * other.at(k, column)).sum())
    }

    /// The rows of a rank's part, and the columns.
    fn part(&self, part: (usize, usize)) -> Self {
        let size = self.rows / part.1;
        Self::new(size, self.columns, |row, column| self.at(part.0 * size + row, column))
    }

    fn columns_of(&self, part: (usize, usize)) -> Self {
        self.turned().part(part).turned()
    }

    fn plus(&self, bias: &Self) -> Self {
        Self::new(self.rows, self.columns, |row, column| self.at(row, column) + bias.at(0, column))
    }

    fn sum(&self) -> Self {
        Self::new(1, self.columns, |_, column| (0..self.rows).map(|row| self.at(row, column)).sum())
    }

    fn array(&self) -> Array<'_> {
        Array::new(&self.data, &[self.rows, self.columns]).unwrap()
    }

    /// As a dimension of its own.
    fn list(&self) -> Array<'_> {
        Array::new(&self.data, &[self.data.len()]).unwrap()
    }

    fn out(&mut self) -> ArrayMut<'_> {
        ArrayMut::new(&mut self.data, &[self.rows, self.columns]).unwrap()
    }

    fn list_out(&mut self) -> ArrayMut<'_> {
        let count = self.data.len();
        ArrayMut::new(&mut self.data, &[count]).unwrap()
    }
}

const IN: usize = 5;
const HIDDEN: usize = 12;
const OUT: usize = 4;
const ROWS: usize = 6;

/// A column-parallel layer and a row-parallel one on what it gives, with everything that the unsplit pair gives.
fn pair(comm: &Comm, sequence: bool, grad: Grad) {
    let part = (comm.rank().unwrap(), comm.size().unwrap());
    let (w1, b1, w2, b2) =
        (Matrix::small(HIDDEN, IN, 1), Matrix::small(1, HIDDEN, 2), Matrix::small(OUT, HIDDEN, 3), Matrix::small(1, OUT, 4));
    let (x, dy) = (Matrix::small(ROWS, IN, 5), Matrix::small(ROWS, OUT, 6));
    let h = x.times(&w1.turned()).plus(&b1);
    let (y, dh) = (h.times(&w2.turned()).plus(&b2), dy.times(&w2));
    let own = |whole: &Matrix| if sequence { whole.part(part) } else { whole.clone() };

    let (up, down) = (Linear::column(IN, HIDDEN).bias().transposed(), Linear::row(HIDDEN, OUT).bias());
    let (up, down) = if sequence { (up.sequence(), down.sequence()) } else { (up, down.grad(grad)) };
    let (up, down) = (up.create(comm).unwrap(), down.create(comm).unwrap());
    let (mine_w1, mine_w2) = (w1.part(part), w2.columns_of(part));
    let (mine_x, mine_b1) = (own(&x), b1.columns_of(part));
    let turned_w1 = mine_w1.turned(); // as the layer has it

    let (mut found_h, mut found_y) = (Matrix::small(ROWS, HIDDEN / part.1, 0), own(&Matrix::small(ROWS, OUT, 0)));
    assert_eq!(up.output_shape(&[mine_x.rows, IN]), [ROWS, HIDDEN / part.1]);
    let saved = up.forward(&mine_x.array()).weight(&turned_w1.array()).bias(&mine_b1.list()).save(&mut found_h.out()).unwrap();
    assert_eq!(found_h, h.columns_of(part));
    // The weight as every second number of a longer list.
    let spread: Vec<f32> = mine_w2.data.iter().flat_map(|&value| [value, f32::NAN]).collect();
    let strides = [2 * mine_w2.columns as i64, 2];
    let spread_w2 = Array::new(Strided::new(&spread, 0, &strides), &[OUT, mine_w2.columns]).unwrap();
    down.forward(&found_h.array()).weight(&spread_w2).bias(&b2.list()).run(&mut found_y.out()).unwrap();
    assert_eq!(found_y, own(&y));

    let share = Matrix::new(ROWS, OUT, |row, column| match (grad, part.0) {
        (Grad::Partial, 0) => dy.at(row, column) - (part.1 - 1) as f32,
        (Grad::Partial, _) => 1.0,
        _ => dy.at(row, column),
    });
    let mine_dy = if sequence { dy.part(part) } else { share };
    let (mut found_dh, mut dw2, mut db2) = (found_h.clone(), mine_w2.clone(), b2.clone());
    let (mut to_dh, mut to_dw2, mut to_db2) = (found_dh.out(), dw2.out(), db2.list_out());
    let (found_h, mine_dy_array) = (found_h.array(), mine_dy.array());
    let backward = down.backward(&mine_dy_array).input(&found_h).weight(&spread_w2);
    backward.grad_input(&mut to_dh).grad_weight(&mut to_dw2).grad_bias(&mut to_db2).run().unwrap();
    assert_eq!((&found_dh, dw2), (&dh.columns_of(part), dy.turned().times(&h).columns_of(part)));
    assert_eq!(db2, if sequence { mine_dy.sum() } else { dy.sum() });

    let (mut dx, mut dw1, mut db1) =
        (mine_x.clone(), Matrix::new(IN, HIDDEN / part.1, |_, _| 1.0), Matrix::new(1, HIDDEN / part.1, |_, _| 1.0));
    let (mut to_dx, mut to_dw1, mut to_db1) = (dx.out(), dw1.out(), db1.list_out());
    let (dh_array, w1_array) = (found_dh.array(), turned_w1.array());
    let backward = up.backward(&dh_array).saved(saved).weight(&w1_array).add();
    backward.grad_input(&mut to_dx).grad_weight(&mut to_dw1).grad_bias(&mut to_db1).run().unwrap();
    let one = |more: &Matrix| Matrix::new(more.rows, more.columns, |row, column| 1.0 + more.at(row, column));
    assert_eq!(dx, own(&dh.times(&w1)));
    assert_eq!((dw1, db1), (one(&dh.columns_of(part).turned().times(&x).turned()), one(&dh.sum().columns_of(part))));
}

#[test]
fn a_pair_of_cut_layers_gives_what_the_unsplit_one_gives() {
    for size in 1..=3 {
        threads(size, |comm| {
            pair(&comm, false, Grad::Replicated);
            pair(&comm, false, Grad::Partial);
            pair(&comm, true, Grad::Replicated);
        });
    }
}

#[test]
fn weights_of_a_buffer_are_read_there_and_their_gradients_go_there() {
    threads(2, |comm| {
        let grid = Grid::builder().tp(2).create(&comm).unwrap();
        let (group, part) = (grid.comm(Axes::TP).unwrap(), (comm.rank().unwrap(), 2));
        let (w, b, x, dy) =
            (Matrix::small(HIDDEN, IN, 1), Matrix::small(1, HIDDEN, 2), Matrix::small(ROWS, IN, 3), Matrix::small(ROWS, HIDDEN, 4));
        let params = [Param::new("w", &[HIDDEN / 2, IN]).sharded(0, 1), Param::new("b", &[HIDDEN / 2]).sharded(0, 1)];
        let mut buffer = Buffer::builder().register(&grid, &params).unwrap();
        buffer.write_param(0, &w.part(part).data).unwrap();
        buffer.write_param(1, &b.columns_of(part).data).unwrap();
        let layer = Linear::column(IN, HIDDEN).create_in(&group, &buffer, 0, Some(1)).unwrap();
        let (mut y, mut dx) = (Matrix::small(ROWS, HIDDEN / 2, 0), x.clone());
        assert_eq!(layer.forward(&x.array()).run(&mut y.out()).unwrap_err().code, Code::Invalid);
        layer.forward(&x.array()).of(&buffer).run(&mut y.out()).unwrap();
        assert_eq!(y, x.times(&w.turned()).plus(&b).columns_of(part));

        let mine = dy.columns_of(part);
        let (mine_dy, input) = (mine.array(), x.array());
        let lent = buffer.acquire::<f32>(1).unwrap(); // which nobody else may write meanwhile
        let refused = layer.backward(&mine_dy).input(&input).of(&buffer).run().unwrap_err();
        assert_eq!(refused.code, Code::State);
        drop(lent);
        layer.backward(&mine_dy).input(&input).of(&buffer).grad_input(&mut dx.out()).run().unwrap();
        assert_eq!(dx, dy.times(&w));
        assert_eq!(buffer.gradients().put(0, &w.part(part).data).unwrap_err().code, Code::State); // it has come
        let synced = buffer.sync().unwrap();
        assert_eq!(synced.grad::<f32>(0).unwrap(), dy.turned().times(&x).part(part).data);
        assert_eq!(synced.grad::<f32>(1).unwrap(), dy.sum().columns_of(part).data);
    });
}

#[test]
fn operators_and_their_gradients() {
    threads(2, |comm| {
        let rank = comm.rank().unwrap();
        let all = [Matrix::small(4, 3, 1), Matrix::small(4, 3, 2)];
        let (own, sum) = (&all[rank], Matrix::new(4, 3, |row, column| all[0].at(row, column) + all[1].at(row, column)));
        let cut = |whole: &Matrix| Matrix::new(4, rank + 1, |row, column| whole.at(row, rank + column)); // 1 column and 2
        let both = |region: Region, x: &Matrix, dy: &Matrix| {
            let shape = region.output_shape(&comm, &[x.rows, x.columns]).unwrap();
            let (mut y, mut dx) = (Matrix::small(shape[0], shape[1], 0), Matrix::small(x.rows, x.columns, 0));
            region.forward(&comm, &x.array(), &mut y.out()).unwrap();
            region.backward(&comm, &dy.array(), &mut dx.out()).unwrap();
            (y, dx)
        };
        assert_eq!(both(Region::copy(Grad::Partial), own, own), (own.clone(), sum.clone()));
        assert_eq!(both(Region::reduce(Grad::Replicated).check_replicated(), own, &all[0]), (sum.clone(), all[0].clone()));
        assert_eq!(both(Region::scatter(1).parts([1, 2]), &all[0], &cut(&all[1])), (cut(&all[0]), all[1].clone()));
        assert_eq!(both(Region::gather(1, Grad::Partial).parts([1, 2]), &cut(&all[0]), own), (all[0].clone(), cut(&sum)));
        assert_eq!(both(Region::reduce_scatter(0), own, &all[1].part((rank, 2))), (sum.part((rank, 2)), all[1].clone()));
        let exchange = Region::exchange(0, 1).to_parts([1, 2]);
        assert_eq!(both(exchange, &all[0].part((rank, 2)), &cut(&all[1])), (cut(&all[0]), all[1].part((rank, 2))));

        let (mut to, from) = (own.clone(), own.array());
        let refused = Region::scatter(1).parts([1]).forward(&comm, &from, &mut to.out()).unwrap_err();
        assert!(refused.code == Code::Invalid && refused.text.contains("parts has 1 numbers"), "{refused}");
        assert!(Region::gather(7, Grad::Partial).parts([1, 2]).output_shape(&comm, &[4, 3]).is_err());
        let (gather, layer) = (|| Region::gather(0, Grad::Partial), Linear::column(4, 8).sequence().create(&comm).unwrap());
        assert_eq!(gather().output_shape(&comm, &[usize::MAX]).unwrap(), [usize::MAX]);
        assert_eq!(gather().parts([u64::MAX, 1]).output_shape(&comm, &[1]).unwrap(), [usize::MAX]);
        assert_eq!(layer.output_shape(&[usize::MAX, 4]), [usize::MAX, 4]);
    });
}

#[test]
fn what_is_refused_is_named() {
    let comm = alone();
    let told = |error: megadp::Error, words: &str| assert!(error.code == Code::Invalid && error.text.contains(words), "{error}");
    told(Linear::row(2, 3).create(&comm).unwrap_err(), "config.grad");
    told(Linear::column(2, 3).dtype(DType::F64).create(&comm).unwrap_err(), "config.dtype");
    told(Linear::column(2, 3).blocks([2, 2]).create(&comm).unwrap_err(), "blocks");
    let buffer = ranks::register(&comm, &Buffer::builder(), &[small("w")]);
    told(Linear::column(2, 3).create_in(&comm, &buffer, 1, None).unwrap_err(), "param is 1");
    told(Linear::column(2, 3).create_in(&comm, &buffer, 0, None).unwrap_err(), "weight");
    let layer = Linear::column(2, 3).gather_output().grad(Grad::Replicated).create(&comm).unwrap();
    let (x, w, mut y) = (Matrix::small(4, 2, 0), Matrix::small(3, 2, 1), Matrix::small(4, 3, 2));
    told(layer.forward(&x.array()).run(&mut y.out()).unwrap_err(), "weight is NULL");
    told(layer.forward(&x.array()).weight(&x.array()).run(&mut y.out()).unwrap_err(), "weight has shape");
    told(layer.forward(&x.array()).weight(&w.array()).of(&buffer).run(&mut y.out()).unwrap_err(), "without one");
    // Two elements in the same place.
    let (mut data, input, weight) = (vec![0f32; 3], x.array(), w.array());
    let mut crowded = ArrayMut::strided(&mut data, 0, &[0, 1], &[4, 3]).unwrap();
    told(layer.forward(&input).weight(&weight).run(&mut crowded).unwrap_err(), "share memory");
    let other = Linear::column(2, 3).create(&comm).unwrap();
    let saved = other.forward(&input).weight(&weight).save(&mut y.out()).unwrap();
    let dy = Matrix::small(4, 3, 3);
    let error = layer.backward(&dy.array()).saved(saved).weight(&weight).run().unwrap_err();
    assert!(error.code == Code::State && error.text.contains("another layer"), "{error}");
}

#[test]
fn flags_are_the_headers() {
    let comm = alone();
    let rows = Linear::row(2, 2).grad(Grad::Partial).whole_input().check_replicated().create(&comm).unwrap();
    let (x, w, mut y) = (Matrix::small(3, 2, 0), Matrix::small(2, 2, 1), Matrix::small(3, 2, 2));
    rows.forward(&x.array()).weight(&w.array()).run(&mut y.out()).unwrap();
    assert_eq!(y, x.times(&w.turned()));
    // Of a column-parallel layer the input is whole anyway.
    assert_eq!(Linear::column(2, 2).whole_input().create(&comm).unwrap_err().code, Code::Invalid);
    assert_eq!(Linear::row(2, 2).grad(Grad::Partial).gather_output().create(&comm).unwrap_err().code, Code::Invalid);
}
