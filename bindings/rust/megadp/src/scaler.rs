// SPDX-License-Identifier: Apache-2.0
//! Loss scales that follow overflows.
use crate::element::dense_view;
use crate::error::{Code, Error, Result, check};
use crate::optimizer::Optimizer;
use crate::sys;

/// A loss scale that grows while gradients are finite and backs off when they are not, without asking the host: as Megatron-LM's dynamic
/// scaler, and with hysteresis 1 torch.amp.GradScaler. What is said here is meant literally.
///
/// ```
/// # use megadp::{Buffer, Comm, Optimizer, Param, Scaler, StepOptions};
/// # let mut buffer = Buffer::builder().register(&Comm::builder().connect()?, &[Param::new("w", &[1])])?;
/// let mut optimizer = Optimizer::builder().create(&buffer)?;
/// optimizer.set_scaler(Some(&Scaler { scale: 1024.0, growth_interval: 1, ..Scaler::default() }))?;
/// for expected in [2048.0, 4096.0] {
///     let scale = *optimizer.scale()?; // what the loss is multiplied by
///     buffer.gradients().put(0, &[0.5 * scale])?;
///     assert_eq!(optimizer.step(&mut buffer, &StepOptions::default())?.grad_norm, 0.5);
///     assert_eq!(optimizer.scaler()?.scale, expected);
/// }
/// # Ok::<(), megadp::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scaler {
    /// What the loss is multiplied by, and gradients are divided by: 65536; 1e-37 to 1e37.
    pub scale: f64,
    /// Growth multiplies by this: 2; at least 1.
    pub growth_factor: f64,
    /// Backing off multiplies by this: 0.5; above 0 and below 1.
    pub backoff_factor: f64,
    /// After so many steps without overflow it grows: 2000; at least 1.
    pub growth_interval: u32,
    /// After so many overflows without growth between, each further one backs off, and so does the last of them: 1; at least 1.
    pub hysteresis: u32,
    /// It does not back off below: 1; at most `scale`.
    pub min_scale: f64,
    /// Steps since the last overflow or growth; below `growth_interval`.
    pub clean_steps: u32,
    /// Overflows since the last growth; at most `hysteresis`.
    pub overflows: u32,
    /// The scale stays.
    pub constant: bool,
}

impl Default for Scaler {
    fn default() -> Self {
        Scaler {
            scale: 65536.0,
            growth_factor: 2.0,
            backoff_factor: 0.5,
            growth_interval: 2000,
            hysteresis: 1,
            min_scale: 1.0,
            clean_steps: 0,
            overflows: 0,
            constant: false,
        }
    }
}

impl Scaler {
    // The library takes 0 for a default; who says it here means it.
    fn raw(&self) -> Result<sys::mdp_scaler> {
        let numbers = [
            ("scale", self.scale, "between 1e-37 and 1e37"),
            ("growth_factor", self.growth_factor, "at least 1 and finite"),
            ("backoff_factor", self.backoff_factor, "above 0 and below 1"),
            ("growth_interval", f64::from(self.growth_interval), "at least 1"),
            ("hysteresis", f64::from(self.hysteresis), "at least 1"),
            ("min_scale", self.min_scale, "between 1e-37 and scale"),
        ];
        if let Some((name, _, right)) = numbers.into_iter().find(|(_, value, _)| *value == 0.0) {
            return Err(Error::new(Code::Invalid, format!("scaler.{name} is 0; it must be {right}")));
        }
        Ok(sys::mdp_scaler {
            growth_interval: self.growth_interval,
            hysteresis: self.hysteresis,
            clean_steps: self.clean_steps,
            overflows: self.overflows,
            scale: self.scale,
            growth_factor: self.growth_factor,
            backoff_factor: self.backoff_factor,
            min_scale: self.min_scale,
            flags: if self.constant { sys::MDP_SCALER_CONSTANT } else { 0 },
            ..sys::mdp_scaler::new()
        })
    }
}

impl Optimizer {
    /// Gives the optimizer a loss scaler, or with `None` none: steps divide gradients by its scale, skip those that are not finite, and take
    /// [`StepOptions::loss_scale`](crate::StepOptions::loss_scale) no more. Waits for the last step. Collective, with equal values; blocking.
    ///
    /// # Errors
    /// INVALID (a value out of range), DESYNC, those of a lost communicator.
    pub fn set_scaler(&mut self, scaler: Option<&Scaler>) -> Result<()> {
        let raw = scaler.map(Scaler::raw).transpose()?;
        let given = raw.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        let _inside = self.shared.enter();
        // SAFETY: a live handle, the buffer's only call; the struct lives through it. The borrow is mutable, so nobody looks at the scale.
        check(unsafe { sys::mdp_optimizer_set_scaler(self.as_raw(), given) })
    }

    /// The scaler as the last step has left it, which is waited for; as it is, it may be given to [`Optimizer::set_scaler`]. Local.
    ///
    /// # Errors
    /// STATE (none), those of a lost communicator.
    pub fn scaler(&self) -> Result<Scaler> {
        let mut raw = sys::mdp_scaler::new();
        let _inside = self.shared.enter();
        // SAFETY: a live handle, the buffer's only call.
        check(unsafe { sys::mdp_optimizer_scaler(self.as_raw(), &mut raw) })?;
        Ok(Scaler {
            scale: raw.scale,
            growth_factor: raw.growth_factor,
            backoff_factor: raw.backoff_factor,
            growth_interval: raw.growth_interval,
            hysteresis: raw.hysteresis,
            min_scale: raw.min_scale,
            clean_steps: raw.clean_steps,
            overflows: raw.overflows,
            constant: raw.flags & sys::MDP_SCALER_CONSTANT != 0,
        })
    }

    /// What the loss is to be multiplied by, where steps keep it. Local.
    ///
    /// # Errors
    /// STATE (no scaler), UNSUPPORTED (memory of a device), those of a lost communicator.
    pub fn scale(&self) -> Result<&f32> {
        let _inside = self.shared.enter();
        let mut view = sys::mdp_tensor::new();
        // SAFETY: a live handle, the buffer's only call.
        check(unsafe { sys::mdp_optimizer_scale(self.as_raw(), &mut view) })?;
        let (data, _) = dense_view::<f32>(&view, "the scale")?;
        // SAFETY: one number, which lives as long as the optimizer. Written by set_scaler(), by loading, and by a step before it tells its
        // report, all of which need the optimizer mutably.
        Ok(unsafe { &*data })
    }

    /// Whether steps of this optimizer skip gradients that are not finite for its scaler's sake.
    pub(crate) fn has_scaler(&self) -> bool {
        let _inside = self.shared.enter();
        let mut view = sys::mdp_tensor::new();
        // SAFETY: a live handle, the buffer's only call.
        unsafe { sys::mdp_optimizer_scale(self.as_raw(), &mut view) == sys::MDP_OK }
    }
}
