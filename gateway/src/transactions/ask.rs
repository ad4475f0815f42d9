//! What is asked of a transaction coordinator and what it answers, in words without wire types.

use super::record::{Place, Producer, Rules, State};
use crate::coordinators::NoCoordinator;
use std::collections::BTreeSet;

/// An event for one partition's coordinator.
#[derive(Clone, Debug)]
pub(crate) enum Ask {
    /// InitProducerId.
    Init(Init),
    /// AddPartitionsToTxn, AddOffsetsToTxn, or a write that adds its partitions.
    Add(Add),
    /// Whether partitions take part, before they are written.
    Verify(Add),
    /// EndTxn.
    End(End),
    /// Transactions that are decided and whose markers nobody writes yet; answered when there is one.
    Decided,
    /// All markers of a transaction are written.
    Written {
        /// The transactional id.
        id: String,
        /// The transaction.
        number: u64,
    },
    /// DescribeTransactions, of one.
    Describe {
        /// The transactional id.
        id: String,
    },
    /// ListTransactions: all of this partition.
    List,
    /// Forget what has not been used for so long that it has expired.
    Sweep,
}

/// InitProducerId.
#[derive(Clone, Debug)]
pub(crate) struct Init {
    /// The transactional id.
    pub(crate) id: String,
    /// How long a transaction may take, ms.
    pub(crate) timeout_ms: i32,
    /// Who the client is; `None`: it starts anew and fences whoever was before (KIP-360).
    pub(crate) expected: Option<Producer>,
    /// A producer id that was never given out, once the coordinator asked for one.
    pub(crate) fresh_id: Option<i64>,
}

/// Partitions of one transaction.
#[derive(Clone, Debug)]
pub(crate) struct Add {
    /// The transactional id.
    pub(crate) id: String,
    /// Who writes.
    pub(crate) producer: Producer,
    /// Which partitions.
    pub(crate) places: Vec<Place>,
    /// The client's rules.
    pub(crate) rules: Rules,
}

/// EndTxn.
#[derive(Clone, Debug)]
pub(crate) struct End {
    /// The transactional id.
    pub(crate) id: String,
    /// Who ends it.
    pub(crate) producer: Producer,
    /// Commit, else abort.
    pub(crate) commit: bool,
    /// The client's rules.
    pub(crate) rules: Rules,
    /// A producer id that was never given out, once the coordinator asked for one.
    pub(crate) fresh_id: Option<i64>,
}

/// The answer to an [`Ask`], same order of kinds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// To `Init`.
    Init(Result<Producer, TxnError>),
    /// To `Add`: number of the transaction.
    Add(Result<u64, TxnError>),
    /// To `Verify`.
    Verify(Result<Verified, TxnError>),
    /// To `End`: who goes on.
    End(Result<Producer, TxnError>),
    /// To `Decided`.
    Decided(Vec<Decided>),
    /// To `Written`.
    Written,
    /// To `Describe`.
    Describe(Option<Described>),
    /// To `List`.
    List(Vec<Listed>),
    /// To `Sweep`.
    Sweep,
    /// To `Init` and `End`: ask again with a producer id that was never given out.
    NeedsProducerId,
}

/// Which of the partitions asked for take part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Verified {
    /// Number of the transaction.
    pub(crate) number: u64,
    /// Those that do.
    pub(crate) places: BTreeSet<Place>,
}

/// A transaction whose outcome is durable and whose markers are to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Decided {
    /// The transactional id.
    pub(crate) id: String,
    /// The transaction.
    pub(crate) number: u64,
    /// What markers carry.
    pub(crate) producer: Producer,
    /// Commit, else abort.
    pub(crate) commit: bool,
    /// Where they go.
    pub(crate) places: Vec<Place>,
    /// The rules it ended by.
    pub(crate) rules: Rules,
}

/// A transactional id in full.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Described {
    /// Where it stands.
    pub(crate) state: State,
    /// Who may write.
    pub(crate) producer: Producer,
    /// ms.
    pub(crate) timeout_ms: i32,
    /// Wall clock ms; -1: none began.
    pub(crate) started_at: i64,
    /// Partitions of the transaction.
    pub(crate) places: Vec<Place>,
}

/// A transactional id in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Listed {
    /// The transactional id.
    pub(crate) id: String,
    /// Where it stands.
    pub(crate) state: State,
    /// Producer id.
    pub(crate) producer_id: i64,
    /// Wall clock ms; -1: none began.
    pub(crate) started_at: i64,
}

/// Why a coordinator refuses.
#[derive(Copy, Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum TxnError {
    /// The transactional id is empty; for good.
    #[error("the transactional id is empty")]
    InvalidRequest,
    /// The timeout is not positive or above the broker's; for good.
    #[error("the transaction timeout is outside of the broker's bounds")]
    InvalidTimeout,
    /// The transactional id is not known, or another producer id is its own; the client has to start anew.
    #[error("this producer id is not that of the transactional id")]
    UnknownProducerId,
    /// A newer producer took the transactional id over; for good.
    #[error("fenced by a newer producer with the same transactional id")]
    Fenced,
    /// Not possible where the transaction stands; for good.
    #[error("not possible in this state of the transaction")]
    InvalidState,
    /// The partition was not added; the transaction has to be aborted.
    #[error("the partition was not added to the transaction")]
    NotAdded,
    /// The transaction before is being completed; until that is done.
    #[error("the previous transaction is being completed")]
    Concurrent,
    /// The state is being loaded; until that ends.
    #[error("the coordinator is loading")]
    Loading,
    /// Another node coordinates it, or this one cannot make anything durable; find the coordinator again.
    #[error("not the coordinator of this transactional id")]
    NotCoordinator,
    /// The topic that keeps transactions cannot be made, or no producer id can be had; until it can.
    #[error("the coordinator is not available")]
    NotAvailable,
}

impl TxnError {
    /// Kafka's code, as its newest versions have it.
    pub(crate) fn code(self) -> i16 {
        match self {
            TxnError::Loading => 14,
            TxnError::NotAvailable => 15,
            TxnError::NotCoordinator => 16,
            TxnError::InvalidRequest => 42,
            TxnError::InvalidState => 48,
            TxnError::UnknownProducerId => 49,
            TxnError::InvalidTimeout => 50,
            TxnError::Concurrent => 51,
            TxnError::Fenced => 90,
            TxnError::NotAdded => 120,
        }
    }

    /// The code in versions that do not know PRODUCER_FENCED (KIP-588).
    pub(crate) fn code_before_fenced(self) -> i16 {
        match self {
            TxnError::Fenced => 47,
            other => other.code(),
        }
    }
}

impl From<NoCoordinator> for TxnError {
    fn from(e: NoCoordinator) -> TxnError {
        match e {
            NoCoordinator::Loading => TxnError::Loading,
            NoCoordinator::Elsewhere => TxnError::NotCoordinator,
            NoCoordinator::NotAvailable => TxnError::NotAvailable,
        }
    }
}
