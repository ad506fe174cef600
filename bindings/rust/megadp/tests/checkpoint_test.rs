// SPDX-License-Identifier: Apache-2.0
//! Checkpoints: what is saved is loaded, on another number of ranks too; what is refused.
mod ranks;

use megadp::{
    Buffer, BufferBuilder, Code, Comm, LoadCheckpoint, Optimizer, Param, Result, SaveCheckpoint, Sharding, StateKind, StepOptions, Strided,
};
use ranks::{alone, register, small, threads};
use std::fs;
use std::path::{Path, PathBuf};

/// A folder that goes with this value.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("megadp-rust-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path).unwrap();
        Folder(path)
    }
}

impl AsRef<Path> for Folder {
    fn as_ref(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn job(comm: &Comm, builder: &BufferBuilder) -> (Buffer, Optimizer) {
    let buffer = register(comm, builder, &[Param::new("w", &[15]), Param::new("b", &[7])]);
    let optimizer = Optimizer::builder().lr(0.125).weight_decay(0.25).create(&buffer).unwrap();
    (buffer, optimizer)
}

fn step(buffer: &mut Buffer, optimizer: &mut Optimizer, number: usize) {
    for (param, size) in [(1, 7), (0, 15)] {
        let gradient: Vec<f32> = (0..size).map(|i| (number + i) as f32).collect();
        buffer.gradients().put(param, &gradient).unwrap();
    }
    optimizer.step(buffer, &StepOptions::default()).unwrap();
}

fn values(buffer: &Buffer) -> Vec<f32> {
    [buffer.param(0).unwrap(), buffer.param(1).unwrap()].concat()
}

fn frozen() -> Param {
    Param::new("frozen", &[2, 2]).frozen()
}

#[test]
fn other_ranks_go_on_with_the_same_bits() {
    let folder = Folder::new("ranks");
    let ended = threads(2, |comm| {
        let (mut buffer, mut optimizer) = job(&comm, &Buffer::builder());
        step(&mut buffer, &mut optimizer, 1);
        step(&mut buffer, &mut optimizer, 2);
        let (transposed, of_rank) = ([1.0f64, 3.0, 2.0, 4.0], vec![7u8; comm.rank().unwrap()]);
        let save = SaveCheckpoint::new(&folder).part(&buffer, &optimizer).tensor(&frozen(), Strided::new(&transposed, 0, &[1, 2]));
        save.shared_data(b"\0all").rank_data(&of_rank).save().unwrap();
        let saved = values(&buffer);
        step(&mut buffer, &mut optimizer, 3);
        (saved, values(&buffer))
    });
    let (saved, after) = &ended[0];
    assert_ne!(saved, after);
    for size in [1, 3] {
        threads(size, |comm| {
            let (mut buffer, mut optimizer) = job(&comm, &Buffer::builder().sharding(Sharding::Zero2).bucket_elements(4));
            let mut array = [0f64; 4];
            LoadCheckpoint::new(&folder).part(&mut buffer, &mut optimizer).tensor(&frozen(), &mut array).load().unwrap();
            assert_eq!((&values(&buffer), array, optimizer.steps(0).unwrap()), (saved, [1.0, 2.0, 3.0, 4.0], 2));
            step(&mut buffer, &mut optimizer, 3);
            assert_eq!(&values(&buffer), after);
        });
    }
    let data = [None, Some(0), Some(1)].map(|rank| megadp::checkpoint_data(&folder, rank).unwrap());
    assert_eq!(data, [b"\0all".to_vec(), vec![], vec![7]]);
    assert_eq!(megadp::checkpoint_data(&folder, Some(2)).unwrap_err().code, Code::Invalid);
    let info: serde_json::Value = serde_json::from_str(&megadp::checkpoint_info(&folder).unwrap()).unwrap();
    assert_eq!((info["files"].as_array().unwrap().len(), info["arrays"].as_array().unwrap().len()), (2, 3));
    assert!(Path::new(info["path"].as_str().unwrap()).starts_with(&folder));
    megadp::verify_checkpoint(&folder).unwrap();
    let model = folder.0.join("model.safetensors");
    megadp::export_checkpoint(&folder, &model, 0).unwrap();
    assert_eq!(megadp::export_checkpoint(&folder, &model, 0).unwrap_err().code, Code::Invalid);
    let comm = alone();
    let (mut buffer, mut optimizer) = job(&comm, &Buffer::builder());
    LoadCheckpoint::new(&model).part(&mut buffer, &mut optimizer).params_only().optional(["frozen"]).load().unwrap();
    assert_eq!(&values(&buffer), saved);

    assert_eq!(megadp::checkpoint_damage(&folder).unwrap(), Vec::<String>::new());
    for rank in 0..2 {
        let file = Path::new(info["path"].as_str().unwrap()).join(format!("rank-0000{rank}.safetensors"));
        let mut bytes = fs::read(&file).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        fs::write(&file, bytes).unwrap();
    }
    let damage = megadp::checkpoint_damage(&folder).unwrap();
    assert_eq!(damage.len(), 2, "{damage:?}");
    assert!(damage[0].contains("rank-00000.safetensors") && damage[1].contains("rank-00001.safetensors"), "{damage:?}");
    assert_eq!(megadp::verify_checkpoint(&folder).unwrap_err().code, Code::Corrupt);
}

#[test]
fn parameters_without_state_and_values_of_the_optimizer() {
    let (folder, comm) = (Folder::new("options"), alone());
    let mut buffer = register(&comm, &Buffer::builder(), &[small("w")]);
    let mut optimizer = Optimizer::builder().lr(0.5).create(&buffer).unwrap();
    optimizer.set_steps(5, None).unwrap();
    buffer.write_param(0, &[1f32, 2.0, 3.0, 4.0]).unwrap();
    optimizer.state_mut(&mut buffer, 0, StateKind::ExpAvg).unwrap()[0] = 0.75;
    for _ in 0..3 {
        SaveCheckpoint::new(&folder).part(&buffer, &optimizer).keep(2).save().unwrap();
    }
    assert_eq!(fs::read_dir(&folder).unwrap().filter(|entry| entry.as_ref().unwrap().file_type().unwrap().is_dir()).count(), 2);
    let loaded = |say: &dyn Fn(LoadCheckpoint<'_>) -> Result<()>| {
        let mut buffer = register(&comm, &Buffer::builder(), &[small("w")]);
        let mut optimizer = Optimizer::builder().lr(0.25).create(&buffer).unwrap();
        say(LoadCheckpoint::new(&folder).part(&mut buffer, &mut optimizer)).unwrap();
        assert_eq!(buffer.param::<f32>(0).unwrap(), [1.0, 2.0, 3.0, 4.0]);
        let info: serde_json::Value = serde_json::from_str(&optimizer.info().unwrap()).unwrap();
        let moment = optimizer.state(&buffer, 0, StateKind::ExpAvg).unwrap()[0];
        (info["lr"].as_f64().unwrap(), optimizer.steps(0).unwrap(), moment)
    };
    assert_eq!(loaded(&|load| load.load()), (0.25, 5, 0.75));
    assert_eq!(loaded(&|load| load.params_only().load()), (0.25, 0, 0.0));
    assert_eq!(loaded(&|load| load.load_hyper().load()), (0.5, 5, 0.75));

    let mut other = register(&comm, &Buffer::builder(), &[small("w"), small("v")]);
    for optional in [vec![], vec!["w"], vec!["\n*"]] {
        let error = LoadCheckpoint::new(&folder).buffer(&mut other).optional(optional).load().unwrap_err();
        assert_eq!((error.code, other.param::<f32>(0).unwrap()), (Code::Invalid, &[0f32; 4][..]), "{error}");
    }
    LoadCheckpoint::new(&folder).buffer(&mut other).optional(["u", "v"]).load().unwrap();
    assert_eq!(other.param::<f32>(0).unwrap()[3], 4.0);
}

#[test]
fn training_goes_on_while_it_is_written() {
    let (folder, comm) = (Folder::new("background"), alone());
    let mut buffer = register(&comm, &Buffer::builder(), &[small("w")]);
    let mut optimizer = Optimizer::builder().create(&buffer).unwrap();
    buffer.write_param(0, &[1f32, 2.0, 3.0, 4.0]).unwrap();
    let request = SaveCheckpoint::new(&folder).part(&buffer, &optimizer).start().unwrap();
    buffer.write_param(0, &[5f32; 4]).unwrap();
    request.wait().unwrap();
    LoadCheckpoint::new(&folder).part(&mut buffer, &mut optimizer).load().unwrap();
    assert_eq!(buffer.param::<f32>(0).unwrap(), [1.0, 2.0, 3.0, 4.0]);
    let fails = || SaveCheckpoint::new("/dev/null").buffer(&buffer).start().unwrap();
    assert_eq!(fails().wait().unwrap_err().code, Code::System);
    drop(fails());
    let error = SaveCheckpoint::new(&folder).buffer(&buffer).save().unwrap_err();
    assert!(error.code == Code::System && error.text.contains("the save before this one"), "{error}");
}

#[test]
fn what_cannot_be_saved_is_named() {
    let (folder, comm) = (Folder::new("refused"), alone());
    let buffer = register(&comm, &Buffer::builder(), &[small("w")]);
    let optimizer = Optimizer::builder().create(&buffer).unwrap();
    let other = register(&comm, &Buffer::builder(), &[small("x")]);
    let stranger = alone();
    let far = register(&stranger, &Buffer::builder(), &[small("y")]);
    let save = || SaveCheckpoint::new(&folder).buffer(&buffer);
    let uncountable = Param::new("t", &[1 << 32, 1 << 32]);
    for (word, wrong) in [
        ("at least one", SaveCheckpoint::new(&folder)),
        ("directory", SaveCheckpoint::new("a\0b").buffer(&buffer)),
        ("not the one", SaveCheckpoint::new(&folder).part(&other, &optimizer)),
        ("one world", save().buffer(&far)),
        ("already", save().buffer(&buffer)),
        ("'w'", save().tensor(&small("w"), &[1f32; 4])),
        ("\"t\": the array has 3", save().tensor(&small("t"), &[1f32; 3])),
        ("NUL", save().tensor(&small("t\0"), &[1f32; 4])),
        ("\"t\": the shape is [4294967296, 4294967296], which has more", save().tensor::<f32>(&uncountable, &[])),
    ] {
        let error = wrong.save().unwrap_err();
        assert!(error.code == Code::Invalid && error.text.contains(word), "{word}: {error}");
    }
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
    assert_eq!(megadp::checkpoint_info(&folder).unwrap_err().code, Code::System);
    assert_eq!(megadp::checkpoint_data(&folder, None).unwrap_err().code, Code::System);
}

/// For tests/bindings/checkpoints.py: what another language has saved in the directory that MEGADP_CHECKPOINTS names.
#[test]
#[ignore = "needs a checkpoint"]
fn loaded_values() {
    let (mut buffer, mut optimizer) = job(&alone(), &Buffer::builder());
    let directory = std::env::var("MEGADP_CHECKPOINTS").unwrap();
    let mut array = [0f64; 4];
    LoadCheckpoint::new(&directory).part(&mut buffer, &mut optimizer).tensor(&frozen(), &mut array).load().unwrap();
    let words = |values: &[f64]| values.iter().map(f64::to_string).collect::<Vec<_>>().join(" ");
    println!("loaded {}", words(&values(&buffer).into_iter().map(f64::from).collect::<Vec<_>>()));
    println!("frozen {}", words(&array));
    println!(
        "steps {} data {}",
        optimizer.steps(0).unwrap(),
        String::from_utf8(megadp::checkpoint_data(&directory, None).unwrap()).unwrap()
    );
}
