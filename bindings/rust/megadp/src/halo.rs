// SPDX-License-Identifier: Apache-2.0
//! Spatial parallelism: arrays cut over a grid of ranks, with a halo of what the neighbours have; and how convolutions are cut.
//!
//! ```
//! use megadp::halo::{ArrayMut, Edge, Halo};
//! use megadp::{Comm, DType};
//!
//! # fn main() -> megadp::Result<()> {
//! let comm = Comm::builder().connect()?;
//! let ranks = comm.size()?;
//! let mut halo = Halo::builder(&[1, ranks], &[3, 4]).width(1).edges([Edge::Keep, Edge::Periodic]).create(&comm)?;
//! let mut field = vec![1f32; 5 * 6]; // this rank's 3 x 4, and its halo
//! let mut fields = [ArrayMut::new(&mut field, &[5, 6])?];
//! let exchange = halo.start(&mut fields)?;
//! let inside: f32 = exchange.field::<f32>(0)?[14..16].iter().sum(); // what needs no halo, meanwhile
//! exchange.finish()?;
//! assert_eq!(inside + field[6], 3.0);
//! # Ok(())
//! # }
//! ```
use crate::comm::Comm;
use crate::element::{DType, Element, dense_view};
use crate::error::{Code, Error, Result, check, narrow};
use crate::handle::{NotSync, Owned, Tree};
use crate::sys;
pub use crate::tp::ArrayMut;
use std::cell::Cell;
use std::marker::PhantomData;
use std::ops::Range;
use std::ptr;
use std::sync::Arc;

/// What is beyond an end of the whole array.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(u32)]
pub enum Edge {
    /// What the caller puts there.
    #[default]
    Keep = sys::MDP_EDGE_KEEP,
    /// Zero.
    Zero = sys::MDP_EDGE_ZERO,
    /// The other end.
    Periodic = sys::MDP_EDGE_PERIODIC,
    /// Mirrored at the outermost element, which is not repeated.
    Reflect = sys::MDP_EDGE_REFLECT,
}

/// What a halo is to be; from [`Halo::builder`]. Lists have a value for each dimension.
#[derive(Clone, Debug)]
pub struct HaloBuilder {
    grid: Vec<usize>,
    part: Vec<usize>,
    low: Vec<usize>,
    high: Vec<usize>,
    edges: Vec<Edge>,
    dtype: DType,
    fields: usize,
    staggered: Vec<Vec<usize>>,
    arrays: usize,
    flags: u64,
}

impl HaloBuilder {
    /// The widths before this rank's part; 0 unless said.
    pub fn low(mut self, widths: &[usize]) -> Self {
        self.low = widths.to_vec();
        self
    }

    /// The widths behind it.
    pub fn high(mut self, widths: &[usize]) -> Self {
        self.high = widths.to_vec();
        self
    }

    /// One width, before and behind, of all dimensions.
    pub fn width(mut self, width: usize) -> Self {
        (self.low, self.high) = (vec![width; self.part.len()], vec![width; self.part.len()]);
        self
    }

    /// What is beyond the whole array; kept unless said.
    pub fn edges(mut self, edges: impl IntoIterator<Item = Edge>) -> Self {
        self.edges = edges.into_iter().collect();
        self
    }

    /// Without edges and corners, which stay as they are: for star-shaped stencils.
    pub fn faces(mut self) -> Self {
        self.flags |= sys::MDP_HALO_FACES;
        self
    }

    /// Of the elements: any; f32 unless said.
    pub fn dtype(mut self, dtype: DType) -> Self {
        self.dtype = dtype;
        self
    }

    /// How many arrays are exchanged at a time; 1 unless said.
    pub fn fields(mut self, count: usize) -> Self {
        self.fields = count;
        self
    }

    /// For each field, and each dimension of it, whether it is longer by one element, 0 or 1: as what lies on the faces of cells is.
    pub fn staggered(mut self, fields: &[&[usize]]) -> Self {
        self.fields = fields.len();
        self.staggered = fields.iter().map(|longer| longer.to_vec()).collect();
        self
    }

    /// How many arrays the library makes, shaped as the fields are in turn; see [`Halo::array`].
    pub fn arrays(mut self, count: usize) -> Self {
        self.arrays = count;
        self
    }

    /// Before and behind, of each dimension.
    #[cfg(feature = "candle")]
    pub(crate) fn widths(&self) -> (Vec<usize>, Vec<usize>) {
        let of = |given: &[usize]| if given.is_empty() { vec![0; self.part.len()] } else { given.to_vec() };
        (of(&self.low), of(&self.high))
    }

    /// The halo. Halos may be wider than parts. Collective, with equal values but for the part; blocking.
    ///
    /// # Errors
    /// INVALID (a grid not of the communicator's size; parts that do not fit; a reflected halo as wide as the whole), DESYNC, MEMORY, those of a
    /// lost communicator.
    pub fn create(&self, comm: &Comm) -> Result<Halo> {
        let ndim = self.part.len();
        let edges: Vec<_> = self.edges.iter().map(|&edge| edge as sys::mdp_edge).collect();
        let lengths = [("grid", self.grid.len()), ("low", self.low.len()), ("high", self.high.len()), ("edges", edges.len())];
        for (name, length) in lengths {
            if length != ndim && (length != 0 || name == "grid") {
                let text = format!("{name} has {length} values; the part has {ndim} dimensions");
                return Err(Error::new(Code::Invalid, text));
            }
        }
        if let Some((field, longer)) = self.staggered.iter().enumerate().find(|(_, longer)| longer.len() != ndim) {
            let text = format!("staggered has {} values of field {field}; the part has {ndim} dimensions", longer.len());
            return Err(Error::new(Code::Invalid, text));
        }
        if !self.staggered.is_empty() && self.staggered.len() != self.fields {
            let text = format!("staggered is of {} fields; this halo has {}", self.staggered.len(), self.fields);
            return Err(Error::new(Code::Invalid, text));
        }
        let (grid, part) = (list(&self.grid, "grid")?, list(&self.part, "part")?);
        let staggered = list(&self.staggered.concat(), "staggered")?;
        let (low, high) = (list(&self.low, "low")?, list(&self.high, "high")?);
        let given = |list: &[i64]| if list.is_empty() { ptr::null() } else { list.as_ptr() };
        let config = sys::mdp_halo_config {
            dtype: self.dtype as sys::mdp_dtype,
            ndim: narrow(ndim, "the number of dimensions")?,
            fields: narrow(self.fields, "fields")?,
            grid: grid.as_ptr(),
            shape: part.as_ptr(),
            low: given(&low),
            high: given(&high),
            edges: if edges.is_empty() { ptr::null() } else { edges.as_ptr() },
            flags: self.flags,
            arrays: self.arrays as u64,
            staggered: given(&staggered),
            ..sys::mdp_halo_config::new()
        };
        let (_inside, raw_comm) = comm.enter_alone();
        let mut out = ptr::null_mut();
        // SAFETY: a live handle, the halo's only call; the struct and its lists, of ndim values each (of each field), live through it.
        check(unsafe { sys::mdp_halo_create(raw_comm, &config, &mut out) })?;
        // SAFETY: just created, and ours.
        let handle = unsafe { Owned::new(out) }?;
        Ok(Halo { handle, _tree: comm.tree.clone(), ndim, under_way: Cell::new(false), not_sync: NotSync::default() })
    }
}

fn list(values: &[usize], name: &str) -> Result<Vec<i64>> {
    values.iter().map(|&value| narrow(value, name)).collect()
}

/// Exchanges of arrays over a grid of ranks. See the [module](self) for an example.
#[derive(Debug)]
pub struct Halo {
    handle: Owned<sys::mdp_halo>,
    _tree: Arc<Tree>,
    ndim: usize,
    /// From a start to its finish, which may never come.
    under_way: Cell<bool>,
    not_sync: NotSync,
}

/// Where a rank's part is, for each dimension.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Place {
    /// In the grid.
    pub coords: Vec<usize>,
    /// Where the part begins in the whole array.
    pub begins: Vec<usize>,
    /// The size of the whole array.
    pub whole: Vec<usize>,
}

impl Halo {
    /// `grid`: how many ranks cut each dimension, 1: it is not cut; the last varies fastest with the rank. `part`: the shape of this rank's part, without
    /// its halo. Arrays that are exchanged have both.
    pub fn builder(grid: &[usize], part: &[usize]) -> HaloBuilder {
        HaloBuilder {
            grid: grid.to_vec(),
            part: part.to_vec(),
            low: Vec::new(),
            high: Vec::new(),
            edges: Vec::new(),
            dtype: DType::F32,
            fields: 1,
            staggered: Vec::new(),
            arrays: 0,
            flags: 0,
        }
    }

    /// Sends off what neighbours need of padded arrays, of any strides. By [`Exchange::finish`] their halos become what the owners have.
    /// Collective, but waits for neighbours alone, two exchanges behind.
    ///
    /// # Errors
    /// INVALID (shapes, dtypes), STATE (an exchange was dropped before its end), those of a lost communicator.
    pub fn start<'a>(&'a mut self, fields: &'a mut [ArrayMut<'_>]) -> Result<Exchange<'a>> {
        self.begin(fields, 0)
    }

    /// The adjoint: what is in the halos is added to where it came from, in the order of ranks, and becomes 0; kept edges stay. As [`Halo::start`].
    ///
    /// # Errors
    /// As [`Halo::start`].
    pub fn start_backward<'a>(&'a mut self, fields: &'a mut [ArrayMut<'_>]) -> Result<Exchange<'a>> {
        self.begin(fields, sys::MDP_HALO_BACKWARD)
    }

    /// [`Halo::start`] and [`Exchange::finish`].
    ///
    /// # Errors
    /// Theirs.
    pub fn exchange(&mut self, fields: &mut [ArrayMut<'_>]) -> Result<()> {
        self.start(fields)?.finish()
    }

    /// [`Halo::start_backward`] and [`Exchange::finish`].
    ///
    /// # Errors
    /// Theirs.
    pub fn backward(&mut self, fields: &mut [ArrayMut<'_>]) -> Result<()> {
        self.start_backward(fields)?.finish()
    }

    fn begin<'a>(&'a mut self, fields: &'a mut [ArrayMut<'_>], flags: u64) -> Result<Exchange<'a>> {
        self.begin_raw(fields.iter().map(|field| field.raw).collect(), flags)
    }

    /// The fields are borrowed mutably as long as the exchange, by themselves or with this halo.
    fn begin_raw(&mut self, fields: Vec<sys::mdp_tensor>, flags: u64) -> Result<Exchange<'_>> {
        // SAFETY: a live handle, the halo's only call; the arrays are used by no call but this and the exchange's finish.
        check(unsafe { sys::mdp_halo_start(self.handle.as_ptr(), fields.as_ptr(), fields.len(), flags, ptr::null_mut()) })?;
        self.under_way.set(true);
        Ok(Exchange { halo: self, fields, borrowed: PhantomData })
    }

    /// One of the padded arrays that the library has made, dense and zero at first. Much that neighbours on the node need of these they read there,
    /// so that nothing is packed. To be given to [`Halo::start_arrays`]. Local.
    ///
    /// # Errors
    /// INVALID (no such array, another type), UNSUPPORTED (on a device), STATE (an exchange was dropped before its end: neighbours may read there yet).
    pub fn array<T: Element>(&mut self, index: usize) -> Result<&mut [T]> {
        if self.under_way.get() {
            let text = "an exchange of this halo was dropped before finish(); neighbours may read its arrays yet";
            return Err(Error::new(Code::State, text));
        }
        let view = self.view(index)?;
        let (data, length) = dense_view(&view, "the halo's array")?;
        // SAFETY: memory of as many elements, which lives as long as the halo, and is borrowed with it.
        Ok(unsafe { std::slice::from_raw_parts_mut(data, length) })
    }

    /// [`Halo::start`] of arrays of the library's, by their numbers.
    ///
    /// # Errors
    /// As [`Halo::start`]; INVALID (no such array).
    pub fn start_arrays(&mut self, indices: &[usize]) -> Result<Exchange<'_>> {
        let fields = indices.iter().map(|&index| self.view(index)).collect::<Result<Vec<_>>>()?;
        self.begin_raw(fields, 0)
    }

    fn view(&self, index: usize) -> Result<sys::mdp_tensor> {
        let mut view = sys::mdp_tensor::new();
        // SAFETY: a live handle, the halo's only call, and a struct to fill.
        check(unsafe { sys::mdp_halo_array(self.handle.as_ptr(), index as u64, &mut view) })?;
        Ok(view)
    }

    /// Where this rank's part is. Local.
    ///
    /// # Errors
    /// STATE in a forked child.
    pub fn place(&self) -> Result<Place> {
        let mut lists = [vec![0i64; self.ndim], vec![0; self.ndim], vec![0; self.ndim]];
        let [coords, begins, whole] = lists.each_mut().map(|list| list.as_mut_ptr());
        // SAFETY: a live handle, the halo's only call, which writes one value for each dimension.
        check(unsafe { sys::mdp_halo_place(self.handle.as_ptr(), coords, begins, whole) })?;
        let [coords, begins, whole] = lists.map(|list| list.into_iter().map(|value| value as usize).collect());
        Ok(Place { coords, begins, whole })
    }
}

/// An exchange that is under way; it borrows its fields. Dropped without [`Exchange::finish`] it leaves halos as they were, and the halo good for
/// nothing but to be dropped, since `Drop` waits for no other rank; the others have what they need of this one.
#[derive(Debug)]
#[must_use = "finish() brings the halos to their place"]
pub struct Exchange<'a> {
    halo: &'a Halo,
    fields: Vec<sys::mdp_tensor>,
    borrowed: PhantomData<&'a mut ()>,
}

impl Exchange<'_> {
    /// A field, to compute what needs no halo; of the halo itself nothing is promised until the end.
    ///
    /// # Errors
    /// INVALID (no such field, another type), UNSUPPORTED (it is not dense).
    pub fn field<T: Element>(&self, index: usize) -> Result<&[T]> {
        let text = || format!("index is {index}; the exchange is of {} fields", self.fields.len());
        let field = self.fields.get(index).ok_or_else(|| Error::new(Code::Invalid, text()))?;
        let (data, length) = dense_view(field, "the field")?;
        // SAFETY: borrowed mutably by this, and in memory of the host, which the library writes within calls alone.
        Ok(unsafe { std::slice::from_raw_parts(data, length) })
    }

    /// Waits for the neighbours, and brings what they have sent to its place. Collective, as [`Halo::start`].
    ///
    /// # Errors
    /// DESYNC (a neighbour went the other way), those of a lost communicator.
    pub fn finish(self) -> Result<()> {
        // SAFETY: a live handle, the halo's only call; the fields are still borrowed.
        check(unsafe { sys::mdp_halo_finish(self.halo.handle.as_ptr(), ptr::null_mut()) })?;
        self.halo.under_way.set(false);
        Ok(())
    }
}

/// A convolution or pooling along one dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conv {
    /// Elements of a window.
    pub kernel: usize,
    /// From window to window.
    pub stride: usize,
    /// From element to element of a window.
    pub dilation: usize,
    /// Zeros before and behind the whole input.
    pub padding: (usize, usize),
}

impl Default for Conv {
    fn default() -> Self {
        Conv { kernel: 1, stride: 1, dilation: 1, padding: (0, 0) }
    }
}

/// What one rank computes of a convolution that is cut.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConvPart {
    /// Width of the halo before the part, the same on all ranks.
    pub low: usize,
    /// Behind it.
    pub high: usize,
    /// Its outputs among those of the whole.
    pub output: Range<usize>,
    /// The element of the padded part at which the first output's window begins.
    pub first: usize,
    /// Which of its own outputs need no halo.
    pub inside: Range<usize>,
    /// Outputs of the whole.
    pub whole_output: usize,
}

/// How an input, cut along one dimension into `parts`, is convolved or pooled by the rank with number `part`: each output by the rank that has the
/// element at output * stride, by the last one beyond. Local.
///
/// # Errors
/// INVALID (a window longer than the padded input).
pub fn conv_split(conv: &Conv, parts: &[usize], part: usize) -> Result<ConvPart> {
    let config = sys::mdp_conv_config {
        kernel: narrow(conv.kernel, "kernel")?,
        stride: narrow(conv.stride, "stride")?,
        dilation: narrow(conv.dilation, "dilation")?,
        padding_low: narrow(conv.padding.0, "padding")?,
        padding_high: narrow(conv.padding.1, "padding")?,
        ..sys::mdp_conv_config::new()
    };
    let (parts, mut out) = (list(parts, "parts")?, sys::mdp_conv_part::new());
    // SAFETY: structs and a list that live through the call.
    check(unsafe { sys::mdp_conv_split(&config, parts.as_ptr(), parts.len(), narrow(part, "part")?, &mut out) })?;
    let range = |begin: i64, size: i64| begin as usize..(begin + size) as usize;
    Ok(ConvPart {
        low: out.low as usize,
        high: out.high as usize,
        output: range(out.output_begin, out.output_size),
        first: out.first as usize,
        inside: range(out.inside_begin, out.inside_size),
        whole_output: out.whole_output as usize,
    })
}
