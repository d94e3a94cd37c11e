//! Faults on demand: which media call fails, how, and whether permanently.
//!
//! The world counts calls per kind from its creation; a plan counts from the moment it is made. The
//! consequences of a failure (poisoning, no change on NoSpace) belong to the contract of each
//! medium and are implemented there.

use std::collections::HashMap;
use std::io;

use shoal_media::MediaError;

/// A kind of media call that can fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Call {
    LogAppend,
    LogSync,
    LogRead,
    LogRelease,
    ImageRead,
    ImageWrite,
    ImageReserve,
    ImageSync,
    DiskRead,
    /// Writes, zeroings and trims.
    DiskWrite,
    DiskFlush,
    /// A fence of `dax` memory. It can only lie.
    Fence,
}

impl Call {
    pub const ALL: [Call; 12] = [
        Call::LogAppend,
        Call::LogSync,
        Call::LogRead,
        Call::LogRelease,
        Call::ImageRead,
        Call::ImageWrite,
        Call::ImageReserve,
        Call::ImageSync,
        Call::DiskRead,
        Call::DiskWrite,
        Call::DiskFlush,
        Call::Fence,
    ];
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// EIO.
    Io,
    /// ENOSPC; nothing is changed.
    NoSpace,
    /// The call reports success and does nothing, to plant a bug. Reads are carried out anyway.
    Lie,
}

/// Makes the `nth` call of a kind fail (0 is the next one), and all later calls if `for_good`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultPlan {
    pub call: Call,
    pub nth: u64,
    pub for_good: bool,
    pub fault: Fault,
}

#[derive(Default)]
pub(crate) struct Faults {
    counts: HashMap<Call, u64>,
    /// Each plan with the call count at the time it was made.
    plans: Vec<(FaultPlan, u64)>,
    pub hits: u64,
}

impl Faults {
    pub fn plan(&mut self, plan: FaultPlan) {
        self.plans.push((plan, self.count(plan.call)));
    }

    pub fn clear(&mut self) {
        self.plans.clear();
    }

    pub fn count(&self, call: Call) -> u64 {
        self.counts.get(&call).copied().unwrap_or(0)
    }

    /// Counts a call and returns the fault it meets, if any.
    pub fn meet(&mut self, call: Call) -> Option<Fault> {
        let count = self.counts.entry(call).or_default();
        let this = *count;
        *count += 1;
        let due = |(plan, base): &&(FaultPlan, u64)| {
            let planned = base + plan.nth;
            plan.call == call && (this == planned || plan.for_good && this > planned)
        };
        let fault = self.plans.iter().find(due).map(|(plan, _)| plan.fault);
        self.hits += fault.is_some() as u64;
        fault
    }
}

/// Returns the error that a medium reports for a fault. `Lie` has none.
pub(crate) fn error(what: &str, fault: Fault) -> MediaError {
    const EIO: i32 = 5;
    match fault {
        Fault::NoSpace => MediaError::NoSpace { what: what.into() },
        Fault::Io | Fault::Lie => MediaError::io(what, io::Error::from_raw_os_error(EIO)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plans_count_from_when_they_were_made() {
        let mut faults = Faults::default();
        assert_eq!(faults.meet(Call::LogSync), None);
        faults.plan(FaultPlan { call: Call::LogSync, nth: 1, for_good: false, fault: Fault::Io });
        faults.plan(FaultPlan { call: Call::DiskRead, nth: 0, for_good: true, fault: Fault::NoSpace });
        assert_eq!([0; 3].map(|_| faults.meet(Call::LogSync)), [None, Some(Fault::Io), None]);
        assert_eq!([0; 3].map(|_| faults.meet(Call::DiskRead)), [Some(Fault::NoSpace); 3]);
        assert_eq!((faults.hits, faults.count(Call::LogSync)), (4, 4));
        faults.clear();
        assert_eq!(faults.meet(Call::DiskRead), None);
    }
}
