//! Making a failed flush good.
//!
//! Rules: when enough donors are there again, and from time to time while they are, everything is
//! flushed without a request. Otherwise what was written before the failed flush would be safe only
//! after the next one. Late effects of operations in flight are handled by the fence and by tainted
//! units, as with any other write. Left out: what is reported meanwhile (`state::unflushed`).

use std::sync::Arc;

use crate::requests::write::flush;
use crate::task::Core;

/// Flushes after a failed flush. Runs as long as the disk.
pub(crate) async fn reflusher(core: Arc<Core>) {
    loop {
        core.until(|state| {
            let enough = state.roster().healthy_donors() > state.plan.parity;
            let due = enough && state.failure.is_none() && state.unflushed.is_due(state.now_ns);
            due.then_some(())
        })
        .await;
        let _ = flush(&core).await;
        let state = &mut *core.lock();
        let now = state.now_ns;
        state.unflushed.tried(now);
    }
}
