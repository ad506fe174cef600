// SPDX-License-Identifier: Apache-2.0
//! Checkpoints: all ranks save parameters, optimizer state, arrays and bytes of the caller's; any number of ranks load them.
use crate::buffer::Buffer;
use crate::element::{Element, Strided, sizes, tensor};
use crate::error::{Code, Error, Result, check, narrow};
use crate::handle::Tree;
use crate::library::text;
use crate::optimizer::Optimizer;
use crate::param::Param;
use crate::request::Request;
use crate::sys;
use std::ffi::CString;
use std::marker::PhantomData;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::Arc;

/// What is saved, and where. Each part is a buffer, with its optimizer or without. To be said alike on all ranks, but for memory and
/// [`rank_data`](Self::rank_data), and between steps.
///
/// ```
/// # use megadp::{Buffer, Comm, LoadCheckpoint, Optimizer, Param, SaveCheckpoint};
/// # let directory = std::env::temp_dir().join(format!("megadp-doc-{}", std::process::id()));
/// # std::fs::create_dir_all(&directory).unwrap();
/// # let comm = Comm::builder().connect()?;
/// # let mut buffer = Buffer::builder().register(&comm, &[Param::new("w", &[4])])?;
/// # let mut optimizer = Optimizer::builder().create(&buffer)?;
/// SaveCheckpoint::new(&directory).part(&buffer, &optimizer).shared_data(b"epoch 3").keep(2).save()?;
/// LoadCheckpoint::new(&directory).part(&mut buffer, &mut optimizer).load()?; // on any number of ranks
/// assert_eq!(megadp::checkpoint_data(&directory, None)?, b"epoch 3");
/// # std::fs::remove_dir_all(&directory).unwrap();
/// # Ok::<(), megadp::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "nothing is saved before save() is called"]
pub struct SaveCheckpoint<'a> {
    directory: PathBuf,
    parts: Vec<(&'a Buffer, Option<&'a Optimizer>)>,
    arrays: Vec<Array<'a>>,
    shared_data: &'a [u8],
    rank_data: &'a [u8],
    keep: u64,
}

impl<'a> SaveCheckpoint<'a> {
    /// Into a directory of checkpoints, on a file system that all hosts share.
    pub fn new(directory: impl AsRef<Path>) -> Self {
        let directory = directory.as_ref().to_path_buf();
        SaveCheckpoint { directory, parts: Vec::new(), arrays: Vec::new(), shared_data: &[], rank_data: &[], keep: 0 }
    }

    /// A buffer's parameters, and its optimizer's state and steps.
    pub fn part(mut self, buffer: &'a Buffer, optimizer: &'a Optimizer) -> Self {
        self.parts.push((buffer, Some(optimizer)));
        self
    }

    /// A buffer's parameters, and the state and steps of its optimizers, which have different parameter groups.
    pub fn part_many(mut self, buffer: &'a Buffer, optimizers: impl IntoIterator<Item = &'a Optimizer>) -> Self {
        self.parts.extend(optimizers.into_iter().map(|optimizer| (buffer, Some(optimizer))));
        self
    }

    /// A buffer's parameters alone.
    pub fn buffer(mut self, buffer: &'a Buffer) -> Self {
        self.parts.push((buffer, None));
        self
    }

    /// An array of the caller's: a frozen parameter, say. Of `about` name, shape and placement count; ranks that hold replicas give the
    /// same.
    pub fn tensor<T: Element>(mut self, about: &Param, from: impl Into<Strided<'a, T>>) -> Self {
        let from = from.into();
        self.arrays.push(Array::new(about, |shape| from.tensor(shape)));
        self
    }

    /// Any bytes, rank 0's count; [`checkpoint_data`] gives them back.
    pub fn shared_data(mut self, data: &'a [u8]) -> Self {
        self.shared_data = data;
        self
    }

    /// Any bytes of this rank; [`checkpoint_data`] gives them back.
    pub fn rank_data(mut self, data: &'a [u8]) -> Self {
        self.rank_data = data;
        self
    }

    /// So many of the newest checkpoints stay; all unless said, and for 0.
    pub fn keep(mut self, count: u64) -> Self {
        self.keep = count;
        self
    }

    /// Saves, under the next free number: the checkpoint is there as a whole or not at all. Collective over the world of the parts,
    /// blocking: it waits for files longer than the timeout.
    ///
    /// # Errors
    /// On all ranks, and older checkpoints stay: INVALID (names that differ or come twice), DESYNC, STATE, SYSTEM (names the file), those
    /// of a lost communicator.
    pub fn save(self) -> Result<()> {
        let config = self.config();
        call(&self.directory, self.parts, self.arrays, config, |config, _| {
            // SAFETY: call() hands over a configuration whose handles and arrays are borrowed by this value; of arrays it only reads.
            check(unsafe { sys::mdp_checkpoint_save(config, ptr::null_mut()) })
        })
    }

    /// The same in the background: returns when all is copied, and the copy is written while training goes on. One is written at a time:
    /// the next save or load waits for it. To be waited for before the parts are dropped, so at the end of a program too: dropping them, or the
    /// request, waits for nothing, and a program that ends meanwhile leaves no checkpoint.
    ///
    /// # Errors
    /// As [`save`](Self::save). The request has those of writing, and ABORTED if a buffer or an optimizer was dropped before it had ended:
    /// then there is no checkpoint. The next save has them if nobody has waited for the request.
    pub fn start(self) -> Result<Request> {
        let config = self.config();
        call(&self.directory, self.parts, self.arrays, config, |config, tree| {
            let mut out = ptr::null_mut();
            // SAFETY: as in save(); what outlives the call is a copy.
            check(unsafe { sys::mdp_checkpoint_save(config, &mut out) })?;
            // SAFETY: the call has succeeded.
            unsafe { Request::new(out, tree) }
        })
    }

    fn config(&self) -> sys::mdp_checkpoint_config {
        let mut config = sys::mdp_checkpoint_config::new();
        (config.shared_data, config.shared_bytes) = (self.shared_data.as_ptr().cast(), self.shared_data.len() as u64);
        (config.rank_data, config.rank_bytes) = (self.rank_data.as_ptr().cast(), self.rank_data.len() as u64);
        config.keep = self.keep;
        config
    }
}

/// What is loaded, from where and into what; saved by any number of ranks, with any sharding and buckets. To be said alike on all ranks,
/// and between steps. See [`SaveCheckpoint`].
#[derive(Debug)]
#[must_use = "nothing is loaded before load() is called"]
pub struct LoadCheckpoint<'a> {
    directory: PathBuf,
    parts: Vec<(&'a Buffer, Option<&'a Optimizer>)>, // borrowed mutably
    arrays: Vec<Array<'a>>,
    optional: Vec<String>,
    flags: u64,
    borrowed: PhantomData<&'a mut Buffer>,
}

impl<'a> LoadCheckpoint<'a> {
    /// The newest checkpoint of a directory, or the one that is this directory.
    pub fn new(directory: impl AsRef<Path>) -> Self {
        let directory = directory.as_ref().to_path_buf();
        LoadCheckpoint { directory, parts: Vec::new(), arrays: Vec::new(), optional: Vec::new(), flags: 0, borrowed: PhantomData }
    }

    /// A buffer's parameters, and its optimizer's state and steps.
    pub fn part(mut self, buffer: &'a mut Buffer, optimizer: &'a mut Optimizer) -> Self {
        self.parts.push((buffer, Some(optimizer)));
        self
    }

    /// A buffer's parameters, and the state and steps of its optimizers, which have different parameter groups.
    pub fn part_many(mut self, buffer: &'a mut Buffer, optimizers: impl IntoIterator<Item = &'a mut Optimizer>) -> Self {
        let buffer: &Buffer = buffer;
        self.parts.extend(optimizers.into_iter().map(|optimizer| (buffer, Some(&*optimizer))));
        self
    }

    /// A buffer's parameters alone.
    pub fn buffer(mut self, buffer: &'a mut Buffer) -> Self {
        self.parts.push((buffer, None));
        self
    }

    /// An array of the caller's, row-major. Of `about` name, shape and placement count.
    pub fn tensor<T: Element>(mut self, about: &Param, to: &'a mut [T]) -> Self {
        self.arrays.push(Array::new(about, |shape| Strided::from(&*to).tensor(shape).map(|_| tensor(to.as_mut_ptr(), shape, None))));
        self
    }

    /// Patterns, as of fnmatch, of names that only the checkpoint or only this program may have.
    pub fn optional<S: Into<String>>(mut self, patterns: impl IntoIterator<Item = S>) -> Self {
        self.optional.extend(patterns.into_iter().map(Into::into));
        self
    }

    /// Not the optimizers' state: moments are zero then, and no step was taken.
    pub fn params_only(mut self) -> Self {
        self.flags |= sys::MDP_CHECKPOINT_PARAMS_ONLY;
        self
    }

    /// Also learning rates, groups and what else the optimizers were told.
    pub fn load_hyper(mut self) -> Self {
        self.flags |= sys::MDP_CHECKPOINT_LOAD_HYPER;
        self
    }

    /// Loads. Collective over the world of the parts, blocking: it waits for files longer than the timeout.
    ///
    /// # Errors
    /// On all ranks, and nothing has changed: INVALID (another model), UNSUPPORTED (of a later version), SYSTEM, CORRUPT, those of a lost
    /// communicator. If data turns out CORRUPT, parameters, slices, states and steps are STATE until a checkpoint has been loaded.
    pub fn load(self) -> Result<()> {
        if let Some(pattern) = self.optional.iter().find(|pattern| pattern.contains('\n')) {
            return Err(Error::new(Code::Invalid, format!("the optional {pattern:?} has a line feed in it; each is one pattern")));
        }
        let optional = c_string(self.optional.join("\n").as_bytes(), "optional")?;
        let config = sys::mdp_checkpoint_config { optional: optional.as_ptr(), flags: self.flags, ..sys::mdp_checkpoint_config::new() };
        let buffers = self.parts.iter().map(|(buffer, _)| *buffer).collect::<Vec<_>>();
        // SAFETY: call() hands over a configuration whose handles and arrays are borrowed mutably by this value, so that no slice of them
        // is in use; the patterns live through it.
        call(&self.directory, self.parts, self.arrays, config, |config, _| check(unsafe { sys::mdp_checkpoint_load(config) }))?;
        buffers.into_iter().try_for_each(Buffer::write_copies)
    }
}

/// The manifest of a directory's newest checkpoint, and its path, as one line of JSON. Local.
///
/// # Errors
/// SYSTEM, CORRUPT, UNSUPPORTED (of a later version).
pub fn checkpoint_info(directory: impl AsRef<Path>) -> Result<String> {
    let directory = c_path(directory.as_ref())?;
    // SAFETY: text() hands over memory of that size; the path lives through the call.
    text(|json, capacity, needed| unsafe { sys::mdp_checkpoint_info(directory.as_ptr(), json, capacity, needed) })
}

/// The bytes that a rank has given to a directory's newest checkpoint as [`rank_data`](SaveCheckpoint::rank_data); without a rank, the
/// [`shared_data`](SaveCheckpoint::shared_data). Local.
///
/// # Errors
/// INVALID (no such rank), SYSTEM, CORRUPT, UNSUPPORTED (of a later version).
pub fn checkpoint_data(directory: impl AsRef<Path>, rank: Option<usize>) -> Result<Vec<u8>> {
    let directory = c_path(directory.as_ref())?;
    let rank = rank.map_or(Ok(-1), |rank| narrow(rank, "rank"))?;
    let mut bytes: Vec<u8> = Vec::new();
    loop {
        let mut needed = 0;
        // SAFETY: the path and the memory live through the call, and the memory has that size.
        let status = unsafe { sys::mdp_checkpoint_data(directory.as_ptr(), rank, bytes.as_mut_ptr().cast(), bytes.len(), &mut needed) };
        match check(status) {
            Err(_) if needed > bytes.len() => bytes.resize(needed, 0), // a newer one may have come since the last call
            result => {
                result?;
                bytes.truncate(needed);
                return Ok(bytes);
            }
        }
    }
}

/// Reads all of a directory's newest checkpoint; [`checkpoint_damage`] tells every damage. Local.
///
/// # Errors
/// CORRUPT (something is damaged), SYSTEM, UNSUPPORTED (of a later version).
pub fn verify_checkpoint(directory: impl AsRef<Path>) -> Result<()> {
    let directory = c_path(directory.as_ref())?;
    // SAFETY: the path lives through the call, and no text is asked for.
    check(unsafe { sys::mdp_checkpoint_verify(directory.as_ptr(), ptr::null_mut(), 0, ptr::null_mut()) })
}

/// Reads all of a directory's newest checkpoint: a sentence for each damage, or why it cannot be read; none if it is whole. Local.
///
/// # Errors
/// INVALID (the path).
pub fn checkpoint_damage(directory: impl AsRef<Path>) -> Result<Vec<String>> {
    let directory = c_path(directory.as_ref())?;
    let mut text = vec![0u8; 1 << 20]; // what does not fit is cut off
    // SAFETY: the path and the text live through the call, and the text has that size.
    let status = unsafe { sys::mdp_checkpoint_verify(directory.as_ptr(), text.as_mut_ptr().cast(), text.len(), ptr::null_mut()) };
    let length = text.iter().position(|&byte| byte == 0).unwrap_or(0);
    match check(status) {
        Err(error) if length == 0 => Err(error),
        _ => Ok(String::from_utf8_lossy(&text[..length]).lines().map(str::to_owned).collect()),
    }
}

/// Writes the newest checkpoint's parameters and arrays, whole and under their names, as an ordinary safetensors file; with more than
/// `most_bytes` of data (0: any) as several with an index. Nothing is written over. [`LoadCheckpoint`] takes it with
/// [`params_only`](LoadCheckpoint::params_only). Local.
///
/// # Errors
/// INVALID (the path, or it is there), SYSTEM, CORRUPT, UNSUPPORTED (of a later version).
pub fn export_checkpoint(directory: impl AsRef<Path>, path: impl AsRef<Path>, most_bytes: u64) -> Result<()> {
    let directory = c_path(directory.as_ref())?;
    let path = c_string(path.as_ref().as_os_str().as_bytes(), "path")?;
    // SAFETY: both paths live through the call.
    check(unsafe { sys::mdp_checkpoint_export(directory.as_ptr(), path.as_ptr(), most_bytes) })
}

/// An array of the caller's. Errors wait for save() or load().
#[derive(Debug)]
struct Array<'a> {
    name: String,
    raw: Result<sys::mdp_checkpoint_tensor>,
    tensor: sys::mdp_tensor,
    _shape: Vec<i64>, // tensor points to it
    borrowed: PhantomData<&'a mut [u8]>,
}

impl Array<'_> {
    fn new(about: &Param, of_shape: impl FnOnce(&[i64]) -> Result<sys::mdp_tensor>) -> Self {
        let mut array = Array {
            name: about.name().into(),
            raw: about.checkpoint_tensor(),
            tensor: sys::mdp_tensor::new(),
            _shape: Vec::new(),
            borrowed: PhantomData,
        };
        match sizes(about.shape()).and_then(|shape| Ok((of_shape(&shape)?, shape))) {
            Ok(filled) => (array.tensor, array._shape) = filled, // moving the shape leaves the sizes where they are
            Err(error) => array.raw = Err(error),
        }
        array
    }

    fn raw(&self, name: &CString) -> Result<sys::mdp_checkpoint_tensor> {
        let about = |error: Error| Error { text: format!("tensor {:?}: {}", self.name, error.text), ..error };
        Ok(sys::mdp_checkpoint_tensor { name: name.as_ptr(), tensor: &self.tensor, ..self.raw.clone().map_err(about)? })
    }
}

/// Fills in what saving and loading have in common, and makes the call, when it is its turn in the parts' context and on their buffers.
fn call<T>(
    directory: &Path,
    parts: Vec<(&Buffer, Option<&Optimizer>)>,
    arrays: Vec<Array<'_>>,
    mut config: sys::mdp_checkpoint_config,
    function: impl FnOnce(&sys::mdp_checkpoint_config, &Arc<Tree>) -> Result<T>,
) -> Result<T> {
    let directory = c_path(directory)?;
    let tree: Arc<Tree> = match parts.first() {
        Some((buffer, _)) => buffer.shared.tree.clone(),
        None => return Err(Error::new(Code::Invalid, "a checkpoint has at least one buffer")),
    };
    let mut raw_parts = Vec::new();
    for &(buffer, optimizer) in &parts {
        if !Arc::ptr_eq(&tree, &buffer.shared.tree) {
            return Err(Error::new(Code::Invalid, "the buffers of a checkpoint must be of one world"));
        }
        if let Some(optimizer) = optimizer {
            optimizer.check_buffer(buffer)?;
        }
        buffer.end_broadcast()?;
        raw_parts.push(sys::mdp_checkpoint_part {
            buffer: buffer.as_raw(),
            optimizer: optimizer.map_or(ptr::null_mut(), Optimizer::as_raw),
            ..sys::mdp_checkpoint_part::new()
        });
    }
    let names = arrays.iter().map(|array| c_string(array.name.as_bytes(), "the name of a tensor")).collect::<Result<Vec<_>>>()?;
    let raw_arrays = arrays.iter().zip(&names).map(|(array, name)| array.raw(name)).collect::<Result<Vec<_>>>()?;
    config.directory = directory.as_ptr();
    (config.parts, config.part_count) = (raw_parts.as_ptr(), raw_parts.len() as u64);
    (config.tensors, config.tensor_count) = (raw_arrays.as_ptr(), raw_arrays.len() as u64);
    let _inside = tree.enter_alone();
    let _turns = parts.iter().map(|(buffer, _)| buffer.shared.enter()).collect::<Vec<_>>();
    function(&config, &tree)
}

fn c_path(path: &Path) -> Result<CString> {
    c_string(path.as_os_str().as_bytes(), "directory")
}

fn c_string(bytes: &[u8], argument: &str) -> Result<CString> {
    let error = || Error::new(Code::Invalid, format!("{argument} is {:?}; it must not hold a NUL", String::from_utf8_lossy(bytes)));
    CString::new(bytes).map_err(|_| error())
}
