// SPDX-License-Identifier: Apache-2.0
//! Halos between ranks against the whole array, forward and backward; the inside meanwhile; what is refused; and how convolutions are cut.
mod ranks;

use megadp::halo::{ArrayMut, Conv, Edge, Halo, HaloBuilder, conv_split};
use megadp::{Code, Comm, DType};
use ranks::{alone, threads};

/// Of a ring, this rank's three elements with a halo of one before and two behind.
fn ring(comm: &Comm) -> HaloBuilder {
    Halo::builder(&[comm.size().unwrap()], &[3]).low(&[1]).high(&[2]).edges([Edge::Periodic])
}

/// The element of the whole ring that is at `i` in rank `rank`'s padded part.
fn source(rank: usize, ranks: usize, i: usize) -> usize {
    (rank * 3 + i + ranks * 3 - 1) % (ranks * 3)
}

#[test]
fn ring_forward_and_backward() {
    for size in 1..=3 {
        threads(size, |comm| {
            let (rank, size) = (comm.rank().unwrap(), comm.size().unwrap());
            let mut halo = ring(&comm).dtype(DType::F64).fields(2).create(&comm).unwrap();
            let place = halo.place().unwrap();
            assert_eq!((place.coords, place.begins, place.whole), (vec![rank], vec![3 * rank], vec![3 * size]));
            let own = |i: usize| (1..4).contains(&i);
            let mut dense: Vec<_> = (0..6).map(|i| if own(i) { source(rank, size, i) as f64 } else { -1.0 }).collect();
            // The second from the end, in every second place of a longer list.
            let mut spread: Vec<_> = (0..12).map(|i| if i % 2 == 0 && own(5 - i / 2) { -dense[5 - i / 2] } else { -7.0 }).collect();
            let mut fields = [ArrayMut::new(&mut dense, &[6]).unwrap(), ArrayMut::strided(&mut spread, 10, &[-2], &[6]).unwrap()];
            let exchange = halo.start(&mut fields).unwrap();
            assert_eq!(exchange.field::<f64>(0).unwrap()[2], source(rank, size, 2) as f64);
            assert_eq!(exchange.field::<f32>(0).unwrap_err().code, Code::Invalid);
            assert_eq!(exchange.field::<f64>(1).unwrap_err().code, Code::Unsupported);
            assert_eq!(exchange.field::<f64>(2).unwrap_err().code, Code::Invalid);
            exchange.finish().unwrap();
            let expected: Vec<_> = (0..6).map(|i| source(rank, size, i) as f64).collect();
            assert_eq!(dense, expected);
            assert!((0..6).all(|i| spread[10 - 2 * i] == -expected[i] && spread[11 - 2 * i] == -7.0));

            // Of a gradient that is 10^rank everywhere.
            let (mut one, mut two) = ([10f64.powi(rank as i32); 6], [1f64; 6]);
            halo.backward(&mut [ArrayMut::new(&mut one, &[6]).unwrap(), ArrayMut::new(&mut two, &[6]).unwrap()]).unwrap();
            for (i, &found) in one.iter().enumerate() {
                let copies = |r: usize| (0..6).filter(|&j| source(r, size, j) == source(rank, size, i)).count() as f64;
                let sum: f64 = (0..size).map(|r| copies(r) * 10f64.powi(r as i32)).sum();
                assert_eq!(found, if own(i) { sum } else { 0.0 });
            }
        });
    }
}

#[test]
fn grid_with_kept_edges_and_without_corners() {
    threads(4, |comm| {
        let rank = comm.rank().unwrap();
        for faces in [false, true] {
            let builder = Halo::builder(&[2, 2], &[1, 1]).width(1).edges([Edge::Keep, Edge::Zero]);
            let mut halo = if faces { builder.faces() } else { builder }.create(&comm).unwrap();
            let mut field = [9f32; 9];
            field[4] = rank as f32 + 1.0;
            halo.exchange(&mut [ArrayMut::new(&mut field, &[3, 3]).unwrap()]).unwrap();
            let (row, column) = (rank / 2, rank % 2); // the last dimension varies fastest
            for (i, found) in field.into_iter().enumerate() {
                let (r, c) = (row + i / 3, column + i % 3);
                let corner = i % 2 == 0 && i != 4;
                let kept = !(1..3).contains(&r) || faces && corner;
                let expected = if kept {
                    9.0
                } else if (1..3).contains(&c) {
                    ((r - 1) * 2 + c) as f32
                } else {
                    0.0
                };
                assert_eq!(found, expected, "element {i} of rank {rank}");
            }
        }
    });
}

/// Cells and their faces, in memory of the caller's and of the library's: what is behind a part begins the next.
#[test]
fn staggered_fields() {
    threads(2, |comm| {
        let rank = comm.rank().unwrap();
        let builder = Halo::builder(&[2], &[3]).width(1).edges([Edge::Keep]).staggered(&[&[0], &[1]]).arrays(2);
        let mut halo = builder.create(&comm).unwrap();
        let expected = [[9f32, 0.0, 1.0, 2.0, 3.0, 4.0], [2.0, 3.0, 4.0, 5.0, 6.0, 9.0]][rank];
        let (mut cells, mut faces) = ([9f32; 5], [9f32; 6]);
        for i in 1..4 {
            (cells[i], faces[i]) = (expected[i], expected[i]);
        }
        if rank == 1 {
            faces[4] = 6.0; // the whole's last one
        }
        let [one, two] = [0, 1].map(|i| halo.array::<f32>(i).unwrap().len());
        assert_eq!((one, two), (5, 6));
        halo.array::<f32>(0).unwrap().copy_from_slice(&cells);
        halo.array::<f32>(1).unwrap().copy_from_slice(&faces);
        halo.start_arrays(&[0, 1]).unwrap().finish().unwrap();
        halo.exchange(&mut [ArrayMut::new(&mut cells, &[5]).unwrap(), ArrayMut::new(&mut faces, &[6]).unwrap()]).unwrap();
        assert_eq!((faces, cells[0], cells[4]), (expected, expected[0], if rank == 0 { 3.0 } else { 9.0 }));
        assert_eq!(halo.array::<f32>(0).unwrap(), cells);
        assert_eq!(halo.array::<f32>(1).unwrap(), faces);
    });
}

#[test]
fn arrays_of_the_library() {
    threads(2, |comm| {
        let rank = comm.rank().unwrap();
        let mut halo = ring(&comm).arrays(2).create(&comm).unwrap();
        assert_eq!(halo.array::<f32>(0).unwrap(), [0.0; 6]);
        halo.array::<f32>(1).unwrap()[1..4].fill(rank as f32 + 1.0);
        let exchange = halo.start_arrays(&[1]).unwrap();
        assert_eq!(exchange.field::<f32>(0).unwrap()[2], rank as f32 + 1.0);
        exchange.finish().unwrap();
        let (mine, other) = (rank as f32 + 1.0, 2.0 - rank as f32);
        assert_eq!(halo.array::<f32>(1).unwrap(), [other, mine, mine, mine, other, other]);
        assert_eq!((halo.array::<f64>(0).unwrap_err().code, halo.array::<f32>(2).unwrap_err().code), (Code::Invalid, Code::Invalid));
    });
}

#[test]
fn dropped_exchanges_and_what_is_refused() {
    let comm = alone();
    let mut halo = ring(&comm).arrays(1).create(&comm).unwrap();
    let mut data = [0f32, 1.0, 2.0, 3.0, 0.0, 0.0];
    let mut told = |shape: &[usize], words: &str| {
        let mut data = vec![0f32; shape.iter().product()];
        let error = halo.exchange(&mut [ArrayMut::new(&mut data, shape).unwrap()]).unwrap_err();
        assert!(error.code == Code::Invalid && error.text.contains(words), "{error}");
    };
    told(&[3], "fields[0] has shape [3]");
    told(&[6, 1], "fields[0] has shape [6,1]");
    assert!(halo.exchange(&mut []).unwrap_err().text.contains("count is 0"));
    drop(halo.start(&mut [ArrayMut::new(&mut data, &[6]).unwrap()]).unwrap());
    let error = halo.exchange(&mut [ArrayMut::new(&mut data, &[6]).unwrap()]).unwrap_err();
    assert!(error.code == Code::State && error.text.contains("mdp_halo_finish comes first"), "{error}");
    assert_eq!(halo.array::<f32>(0).unwrap_err().code, Code::State);
    for (builder, words) in [
        (Halo::builder(&[2], &[3]), "config.grid is [2]"),
        (Halo::builder(&[1, 1], &[3]), "grid has 2 values"),
        (ring(&comm).low(&[1, 1]), "low has 2 values"),
        (ring(&comm).edges([Edge::Reflect]).low(&[3]), "it may be 2"),
        (ring(&comm).fields(5000), "config.fields is 5000"),
        (ring(&comm).staggered(&[&[1, 0]]), "staggered has 2 values of field 0"),
        (ring(&comm).staggered(&[&[2]]), "config.staggered[0], dimension 0 of field 0, is 2"),
        (ring(&comm).staggered(&[&[1]]).fields(2), "staggered is of 1 fields"),
        (ring(&comm).low(&[usize::MAX]), "low is 18446744073709551615"),
    ] {
        let error = builder.create(&comm).unwrap_err();
        assert!(error.code == Code::Invalid && error.text.contains(words), "{error}");
    }
}

#[test]
fn convolutions() {
    let conv = Conv { kernel: 3, stride: 2, padding: (1, 0), ..Conv::default() };
    let parts = [0, 1].map(|part| conv_split(&conv, &[4, 3], part).unwrap());
    assert_eq!((parts[0].low, parts[0].high, parts[0].whole_output), (1, 0, 3));
    assert_eq!((&parts[0].output, parts[0].first, &parts[0].inside), (&(0..2), 0, &(1..2)));
    assert_eq!((&parts[1].output, parts[1].first, parts[1].inside.len()), (&(2..3), 0, 0));
    let error = conv_split(&conv, &[4, 3], 2).unwrap_err();
    assert!(error.code == Code::Invalid && error.text.contains("part is 2"), "{error}");
    assert!(conv_split(&conv, &[1], 0).unwrap_err().text.contains("the window of config"));
}
