//! Tests that prove versions: each runs once for every version of an API that it names, and must have had that version
//! of that request answered. `docs/kafka-apis.md` is written from [`all`], so a version that is listed there was
//! exercised; a version that is served and that no proof names fails the tests.

use crate::support::{Client, run};
use std::ops::RangeInclusive;

pub mod admin;
pub mod configs;
pub mod data;
pub mod groups;
pub mod topics;
pub mod transactions;

/// What one test proves.
#[derive(Clone, Debug)]
pub struct Proof {
    /// API key.
    pub key: i16,
    /// Versions that the test runs with.
    pub versions: RangeInclusive<i16>,
    /// The test.
    pub test: &'static str,
}

/// All of them.
pub fn all() -> Vec<Proof> {
    [data::PROOFS, topics::PROOFS, configs::PROOFS, groups::PROOFS, admin::PROOFS, transactions::PROOFS]
        .concat()
}

/// `proofs! { name: Request min..=max, |client, version| { … } … }`: a test per line, and its entry in `PROOFS`.
macro_rules! proofs {
    ($($name:ident: $request:ident $from:literal..=$to:literal, |$client:ident, $version:ident| $body:block)*) => {
        /// What the tests of this module prove.
        pub const PROOFS: &[$crate::proofs::Proof] = &[$($crate::proofs::Proof {
            key: <kafka_protocol::messages::$request as kafka_protocol::protocol::Request>::KEY,
            versions: $from..=$to,
            test: stringify!($name),
        },)*];
        $(#[test]
        fn $name() {
            let key = <kafka_protocol::messages::$request as kafka_protocol::protocol::Request>::KEY;
            $crate::proofs::prove(key, $from..=$to, async |$client: &mut $crate::support::Client, $version: i16| $body);
        })*
    };
}
pub(crate) use proofs;

/// Runs a proof with each version, a connection for each.
pub fn prove(key: i16, versions: RangeInclusive<i16>, proof: impl AsyncFn(&mut Client, i16)) {
    run(async {
        for version in versions {
            let mut client = Client::new().await;
            proof(&mut client, version).await;
            assert!(
                client.answered().contains(&(key, version)),
                "version {version} of API {key} was not answered in its own proof"
            );
        }
    });
}
