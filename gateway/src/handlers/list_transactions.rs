//! ListTransactions (66), versions 0 to 2 (KIP-664).
//!
//! v1: only those that run for longer (KIP-994). v2: only those whose id matches an expression (KIP-1152).

use super::words::wire;
use super::{Context, Operation, Resource};
use crate::protocol::dispatch::Close;
use crate::transactions::{Listed, State};
use kafka_protocol::ResponseError;
use kafka_protocol::messages::list_transactions_response::TransactionState;
use kafka_protocol::messages::{
    ListTransactionsRequest, ListTransactionsResponse, ProducerId, TransactionalId,
};
use kafka_protocol::protocol::StrBytes;
use regex::{Regex, RegexBuilder};

/// Memory of a compiled expression, bytes.
const EXPRESSION_BYTES_MAX: usize = 1 << 20;

/// Lists what the filters let through.
pub async fn handle(
    context: Context,
    request: ListTransactionsRequest,
) -> Result<ListTransactionsResponse, Close> {
    let failed = |code| Ok(ListTransactionsResponse::default().with_error_code(code));
    let Ok(filter) = Filter::of(&request, context.api.now_ms()) else {
        return failed(ResponseError::InvalidRegularExpression.code());
    };
    let listed = match context.shared.transactions.list().await {
        Ok(listed) => listed,
        Err(error) => return failed(error.code()),
    };
    let may_see = |id: &str| context.authorize(Operation::Describe, Resource::Transaction(id));
    let listed = listed.into_iter().filter(|one| filter.lets(one) && may_see(&one.id));
    Ok(respond(listed.map(row).collect(), request.state_filters))
}

/// What is asked for; all of it has to be met.
struct Filter {
    /// Any where it is empty; a word that is no state's lets none through.
    states: Vec<StrBytes>,
    producer_ids: Vec<ProducerId>,
    /// Began at or before, wall clock ms: what never began did.
    began_before: Option<i64>,
    id: Option<Regex>,
}

impl Filter {
    fn of(request: &ListTransactionsRequest, now_ms: i64) -> Result<Filter, regex::Error> {
        let pattern = request.transactional_id_pattern.as_deref().filter(|pattern| !pattern.is_empty());
        let whole =
            |pattern| RegexBuilder::new(&format!("^(?:{pattern})$")).size_limit(EXPRESSION_BYTES_MAX).build();
        Ok(Filter {
            states: request.state_filters.clone(),
            producer_ids: request.producer_id_filters.clone(),
            began_before: (request.duration_filter >= 0)
                .then(|| now_ms.saturating_sub(request.duration_filter)),
            id: pattern.map(whole).transpose()?,
        })
    }

    fn lets(&self, one: &Listed) -> bool {
        let state =
            self.states.is_empty() || self.states.iter().any(|name| name.as_str() == one.state.name());
        let producer =
            self.producer_ids.is_empty() || self.producer_ids.contains(&ProducerId(one.producer_id));
        let duration = self.began_before.is_none_or(|at| one.started_at < at);
        state && producer && duration && self.id.as_ref().is_none_or(|id| id.is_match(&one.id))
    }
}

/// Words that Kafka has for states, also for two that are never seen here.
fn is_state(name: &str) -> bool {
    let seen = [
        State::Empty,
        State::Ongoing,
        State::PrepareCommit,
        State::PrepareAbort,
        State::CompleteCommit,
        State::CompleteAbort,
    ];
    seen.iter().any(|state| state.name() == name) || matches!(name, "Dead" | "PrepareEpochFence")
}

fn row(one: Listed) -> TransactionState {
    TransactionState::default()
        .with_transactional_id(TransactionalId(wire(one.id)))
        .with_producer_id(ProducerId(one.producer_id))
        .with_transaction_state(StrBytes::from_static_str(one.state.name()))
}

fn respond(rows: Vec<TransactionState>, asked: Vec<StrBytes>) -> ListTransactionsResponse {
    let unknown = asked.into_iter().filter(|name| !is_state(name)).collect();
    ListTransactionsResponse::default().with_transaction_states(rows).with_unknown_state_filters(unknown)
}

#[cfg(test)]
mod tests {
    use super::super::round_trip::{request, response};
    use super::*;

    fn listed(id: &str, state: State, started_at: i64) -> Listed {
        Listed { id: id.into(), state, producer_id: id.len() as i64, started_at }
    }

    fn shown(sent: &ListTransactionsRequest) -> Vec<String> {
        let all = [
            listed("a", State::Ongoing, 900),
            listed("bb", State::CompleteCommit, 100),
            listed("abc", State::Empty, -1),
        ];
        let filter = Filter::of(sent, 1000).expect("a good expression");
        all.into_iter().filter(|one| filter.lets(one)).map(|one| one.id).collect()
    }

    #[test]
    fn every_version_filters_by_what_it_has() {
        for version in 0..=2 {
            let mut sent = ListTransactionsRequest::default();
            assert_eq!(shown(&request(sent.clone(), version, 0)), ["a", "bb", "abc"]);
            sent.state_filters = vec![wire("Ongoing"), wire("nonsense")];
            assert_eq!(shown(&request(sent.clone(), version, 0)), ["a"]);
            sent.state_filters = vec![wire("nonsense")];
            assert_eq!(shown(&request(sent.clone(), version, 0)), [""; 0], "none is in that state");
            sent.state_filters.clear();
            sent.producer_id_filters = vec![ProducerId(2)];
            assert_eq!(shown(&request(sent.clone(), version, 0)), ["bb"]);
            sent.producer_id_filters.clear();
            if version >= 1 {
                sent.duration_filter = 500;
                assert_eq!(shown(&request(sent.clone(), version, 0)), ["bb", "abc"]);
                sent.duration_filter = -1;
            }
            if version >= 2 {
                sent.transactional_id_pattern = Some(wire("a|b+"));
                assert_eq!(shown(&request(sent.clone(), version, 0)), ["a", "bb"]);
                sent.transactional_id_pattern = Some(wire("("));
                assert!(Filter::of(&sent, 1000).is_err());
            }
            let rows = vec![row(listed("a", State::Ongoing, 1))];
            let read = response(respond(rows, vec![wire("nonsense"), wire("Dead")]), version);
            assert_eq!(read.unknown_state_filters, [wire("nonsense")]);
            let one = &read.transaction_states[0];
            assert_eq!((one.transactional_id.as_str(), one.producer_id.0), ("a", 1));
            assert_eq!(one.transaction_state.as_str(), "Ongoing");
        }
    }
}
