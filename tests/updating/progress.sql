-- A learner's progress.db as the course of November 2026 wrote it: every id that there was then.
BEGIN TRANSACTION;
CREATE TABLE chapter (
            slug TEXT PRIMARY KEY,
            times INTEGER NOT NULL,
            first_at TEXT NOT NULL,
            last_at TEXT NOT NULL
        );
INSERT INTO "chapter" VALUES('00_start_here',1,'2026-11-01T12:00:00+00:00','2026-11-01T12:00:00+00:00');
INSERT INTO "chapter" VALUES('01_attention_basics',1,'2026-11-01T12:00:00+00:00','2026-11-01T12:00:00+00:00');
INSERT INTO "chapter" VALUES('02_flash_attention_minimal',1,'2026-11-01T12:00:00+00:00','2026-11-01T12:00:00+00:00');
INSERT INTO "chapter" VALUES('03_flash_attention_v2',1,'2026-11-01T12:00:00+00:00','2026-11-01T12:00:00+00:00');
INSERT INTO "chapter" VALUES('04_sparse_patterns',1,'2026-11-01T12:00:00+00:00','2026-11-01T12:00:00+00:00');
INSERT INTO "chapter" VALUES('05_deepseek_sparse',1,'2026-11-01T12:00:00+00:00','2026-11-01T12:00:00+00:00');
INSERT INTO "chapter" VALUES('08_choosing',1,'2026-11-01T12:00:00+00:00','2026-11-01T12:00:00+00:00');
CREATE TABLE exercise (
            id TEXT PRIMARY KEY,
            attempts INTEGER NOT NULL,
            best TEXT NOT NULL,      -- a Result as JSON
            best_earned INTEGER NOT NULL,
            best_at TEXT NOT NULL,
            last TEXT NOT NULL,
            last_at TEXT NOT NULL
        );
INSERT INTO "exercise" VALUES('00_start_here/conflict_free_tile',1,'{
 "exercise": "00_start_here/conflict_free_tile",
 "title": "A tile without bank conflicts",
 "digest": "d1ge57",
 "seed": 0,
 "device": "cpu",
 "status": "ok",
 "parts": [
  {
   "name": "all",
   "title": "All",
   "points": 16,
   "earned": 16,
   "status": "right",
   "bonus": false,
   "diagnosis": null,
   "ratio": null
  }
 ]
}',16,'2026-11-01T12:00:00+00:00','{
 "exercise": "00_start_here/conflict_free_tile",
 "title": "A tile without bank conflicts",
 "digest": "d1ge57",
 "seed": 0,
 "device": "cpu",
 "status": "ok",
 "parts": [
  {
   "name": "all",
   "title": "All",
   "points": 16,
   "earned": 16,
   "status": "right",
   "bonus": false,
   "diagnosis": null,
   "ratio": null
  }
 ]
}','2026-11-01T12:00:00+00:00');
INSERT INTO "exercise" VALUES('01_attention_basics/coalesced_scores',1,'{
 "exercise": "01_attention_basics/coalesced_scores",
 "title": "Coalesced scores",
 "digest": "d1ge57",
 "seed": 0,
 "device": "cpu",
 "status": "ok",
 "parts": [
  {
   "name": "all",
   "title": "All",
   "points": 17,
   "earned": 17,
   "status": "right",
   "bonus": false,
   "diagnosis": null,
   "ratio": null
  }
 ]
}',17,'2026-11-01T12:00:00+00:00','{
 "exercise": "01_attention_basics/coalesced_scores",
 "title": "Coalesced scores",
 "digest": "d1ge57",
 "seed": 0,
 "device": "cpu",
 "status": "ok",
 "parts": [
  {
   "name": "all",
   "title": "All",
   "points": 17,
   "earned": 17,
   "status": "right",
   "bonus": false,
   "diagnosis": null,
   "ratio": null
  }
 ]
}','2026-11-01T12:00:00+00:00');
INSERT INTO "exercise" VALUES('02_flash_attention_minimal/online_softmax',1,'{
 "exercise": "02_flash_attention_minimal/online_softmax",
 "title": "Online softmax",
 "digest": "d1ge57",
 "seed": 0,
 "device": "cpu",
 "status": "ok",
 "parts": [
  {
   "name": "all",
   "title": "All",
   "points": 12,
   "earned": 12,
   "status": "right",
   "bonus": false,
   "diagnosis": null,
   "ratio": null
  }
 ]
}',12,'2026-11-01T12:00:00+00:00','{
 "exercise": "02_flash_attention_minimal/online_softmax",
 "title": "Online softmax",
 "digest": "d1ge57",
 "seed": 0,
 "device": "cpu",
 "status": "ok",
 "parts": [
  {
   "name": "all",
   "title": "All",
   "points": 12,
   "earned": 12,
   "status": "right",
   "bonus": false,
   "diagnosis": null,
   "ratio": null
  }
 ]
}','2026-11-01T12:00:00+00:00');
INSERT INTO "exercise" VALUES('02_flash_attention_minimal/mini_flash',1,'{
 "exercise": "02_flash_attention_minimal/mini_flash",
 "title": "Mini FlashAttention",
 "digest": "d1ge57",
 "seed": 0,
 "device": "cpu",
 "status": "ok",
 "parts": [
  {
   "name": "all",
   "title": "All",
   "points": 20,
   "earned": 20,
   "status": "right",
   "bonus": false,
   "diagnosis": null,
   "ratio": null
  }
 ]
}',20,'2026-11-01T12:00:00+00:00','{
 "exercise": "02_flash_attention_minimal/mini_flash",
 "title": "Mini FlashAttention",
 "digest": "d1ge57",
 "seed": 0,
 "device": "cpu",
 "status": "ok",
 "parts": [
  {
   "name": "all",
   "title": "All",
   "points": 20,
   "earned": 20,
   "status": "right",
   "bonus": false,
   "diagnosis": null,
   "ratio": null
  }
 ]
}','2026-11-01T12:00:00+00:00');
INSERT INTO "exercise" VALUES('02_flash_attention_minimal/mend_the_race',1,'{
 "exercise": "02_flash_attention_minimal/mend_the_race",
 "title": "Mend the race",
 "digest": "d1ge57",
 "seed": 0,
 "device": "cpu",
 "status": "ok",
 "parts": [
  {
   "name": "all",
   "title": "All",
   "points": 15,
   "earned": 15,
   "status": "right",
   "bonus": false,
   "diagnosis": null,
   "ratio": null
  }
 ]
}',15,'2026-11-01T12:00:00+00:00','{
 "exercise": "02_flash_attention_minimal/mend_the_race",
 "title": "Mend the race",
 "digest": "d1ge57",
 "seed": 0,
 "device": "cpu",
 "status": "ok",
 "parts": [
  {
   "name": "all",
   "title": "All",
   "points": 15,
   "earned": 15,
   "status": "right",
   "bonus": false,
   "diagnosis": null,
   "ratio": null
  }
 ]
}','2026-11-01T12:00:00+00:00');
INSERT INTO "exercise" VALUES('03_flash_attention_v2/causal_skip',1,'{
 "exercise": "03_flash_attention_v2/causal_skip",
 "title": "Causal tile skipping",
 "digest": "d1ge57",
 "seed": 0,
 "device": "cpu",
 "status": "ok",
 "parts": [
  {
   "name": "all",
   "title": "All",
   "points": 15,
   "earned": 15,
   "status": "right",
   "bonus": false,
   "diagnosis": null,
   "ratio": null
  }
 ]
}',15,'2026-11-01T12:00:00+00:00','{
 "exercise": "03_flash_attention_v2/causal_skip",
 "title": "Causal tile skipping",
 "digest": "d1ge57",
 "seed": 0,
 "device": "cpu",
 "status": "ok",
 "parts": [
  {
   "name": "all",
   "title": "All",
   "points": 15,
   "earned": 15,
   "status": "right",
   "bonus": false,
   "diagnosis": null,
   "ratio": null
  }
 ]
}','2026-11-01T12:00:00+00:00');
INSERT INTO "exercise" VALUES('03_flash_attention_v2/split_kv',1,'{
 "exercise": "03_flash_attention_v2/split_kv",
 "title": "Split-KV, and the merge",
 "digest": "d1ge57",
 "seed": 0,
 "device": "cpu",
 "status": "ok",
 "parts": [
  {
   "name": "all",
   "title": "All",
   "points": 15,
   "earned": 15,
   "status": "right",
   "bonus": false,
   "diagnosis": null,
   "ratio": null
  }
 ]
}',15,'2026-11-01T12:00:00+00:00','{
 "exercise": "03_flash_attention_v2/split_kv",
 "title": "Split-KV, and the merge",
 "digest": "d1ge57",
 "seed": 0,
 "device": "cpu",
 "status": "ok",
 "parts": [
  {
   "name": "all",
   "title": "All",
   "points": 15,
   "earned": 15,
   "status": "right",
   "bonus": false,
   "diagnosis": null,
   "ratio": null
  }
 ]
}','2026-11-01T12:00:00+00:00');
INSERT INTO "exercise" VALUES('04_sparse_patterns/custom_mask',1,'{
 "exercise": "04_sparse_patterns/custom_mask",
 "title": "Custom sparse mask",
 "digest": "d1ge57",
 "seed": 0,
 "device": "cpu",
 "status": "ok",
 "parts": [
  {
   "name": "all",
   "title": "All",
   "points": 16,
   "earned": 16,
   "status": "right",
   "bonus": false,
   "diagnosis": null,
   "ratio": null
  }
 ]
}',16,'2026-11-01T12:00:00+00:00','{
 "exercise": "04_sparse_patterns/custom_mask",
 "title": "Custom sparse mask",
 "digest": "d1ge57",
 "seed": 0,
 "device": "cpu",
 "status": "ok",
 "parts": [
  {
   "name": "all",
   "title": "All",
   "points": 16,
   "earned": 16,
   "status": "right",
   "bonus": false,
   "diagnosis": null,
   "ratio": null
  }
 ]
}','2026-11-01T12:00:00+00:00');
INSERT INTO "exercise" VALUES('05_deepseek_sparse/topk_gather',1,'{
 "exercise": "05_deepseek_sparse/topk_gather",
 "title": "Top-k and gather",
 "digest": "d1ge57",
 "seed": 0,
 "device": "cpu",
 "status": "ok",
 "parts": [
  {
   "name": "all",
   "title": "All",
   "points": 17,
   "earned": 17,
   "status": "right",
   "bonus": false,
   "diagnosis": null,
   "ratio": null
  }
 ]
}',17,'2026-11-01T12:00:00+00:00','{
 "exercise": "05_deepseek_sparse/topk_gather",
 "title": "Top-k and gather",
 "digest": "d1ge57",
 "seed": 0,
 "device": "cpu",
 "status": "ok",
 "parts": [
  {
   "name": "all",
   "title": "All",
   "points": 17,
   "earned": 17,
   "status": "right",
   "bonus": false,
   "diagnosis": null,
   "ratio": null
  }
 ]
}','2026-11-01T12:00:00+00:00');
CREATE TABLE learner (one INTEGER PRIMARY KEY CHECK (one = 1), seed INTEGER NOT NULL);
INSERT INTO "learner" VALUES(1,880067);
CREATE TABLE question (
            id TEXT PRIMARY KEY,
            attempts INTEGER NOT NULL,
            right_at TEXT,           -- of the first right answer; NULL before it
            last_right INTEGER NOT NULL,
            last_answer TEXT NOT NULL,  -- JSON
            seed INTEGER NOT NULL,   -- that the question was drawn with the last time
            last_at TEXT NOT NULL
        );
INSERT INTO "question" VALUES('00_start_here/idle_threads',1,'2026-11-01T12:00:00+00:00',1,'1',7,'2026-11-01T12:00:00+00:00');
INSERT INTO "question" VALUES('00_start_here/unchecked_overrun',1,'2026-11-01T12:00:00+00:00',1,'1',7,'2026-11-01T12:00:00+00:00');
INSERT INTO "question" VALUES('00_start_here/floor_of_a_scaled_sum',1,'2026-11-01T12:00:00+00:00',1,'1',7,'2026-11-01T12:00:00+00:00');
INSERT INTO "question" VALUES('00_start_here/traffic_of_a_chain',1,'2026-11-01T12:00:00+00:00',1,'1',7,'2026-11-01T12:00:00+00:00');
INSERT INTO "question" VALUES('00_start_here/sectors_of_a_load',1,'2026-11-01T12:00:00+00:00',1,'1',7,'2026-11-01T12:00:00+00:00');
INSERT INTO "question" VALUES('00_start_here/turns_of_a_column',1,'2026-11-01T12:00:00+00:00',1,'1',7,'2026-11-01T12:00:00+00:00');
INSERT INTO "question" VALUES('00_start_here/tile_of_a_product',1,'2026-11-01T12:00:00+00:00',1,'1',7,'2026-11-01T12:00:00+00:00');
INSERT INTO "question" VALUES('00_start_here/lucky_race',1,'2026-11-01T12:00:00+00:00',1,'1',7,'2026-11-01T12:00:00+00:00');
INSERT INTO "question" VALUES('00_start_here/line_to_mend',1,'2026-11-01T12:00:00+00:00',1,'1',7,'2026-11-01T12:00:00+00:00');
INSERT INTO "question" VALUES('00_start_here/meaning_of_silence',1,'2026-11-01T12:00:00+00:00',1,'1',7,'2026-11-01T12:00:00+00:00');
INSERT INTO "question" VALUES('01_attention_basics/equal_queries',1,'2026-11-01T12:00:00+00:00',1,'1',7,'2026-11-01T12:00:00+00:00');
INSERT INTO "question" VALUES('01_attention_basics/divided_by_d',1,'2026-11-01T12:00:00+00:00',1,'1',7,'2026-11-01T12:00:00+00:00');
INSERT INTO "question" VALUES('01_attention_basics/sectors_by_mapping',1,'2026-11-01T12:00:00+00:00',1,'1',7,'2026-11-01T12:00:00+00:00');
INSERT INTO "question" VALUES('01_attention_basics/safe_softmax',1,'2026-11-01T12:00:00+00:00',1,'1',7,'2026-11-01T12:00:00+00:00');
INSERT INTO "question" VALUES('01_attention_basics/scores_of_a_mask',1,'2026-11-01T12:00:00+00:00',1,'1',7,'2026-11-01T12:00:00+00:00');
INSERT INTO "question" VALUES('01_attention_basics/traffic_of_three_passes',1,'2026-11-01T12:00:00+00:00',1,'1',7,'2026-11-01T12:00:00+00:00');
INSERT INTO "question" VALUES('01_attention_basics/less_memory_or_less_time',1,'2026-11-01T12:00:00+00:00',1,'1',7,'2026-11-01T12:00:00+00:00');
INSERT INTO "question" VALUES('01_attention_basics/too_good_a_loss',1,'2026-11-01T12:00:00+00:00',1,'1',7,'2026-11-01T12:00:00+00:00');
INSERT INTO "question" VALUES('01_attention_basics/kept_pairs',1,'2026-11-01T12:00:00+00:00',1,'1',7,'2026-11-01T12:00:00+00:00');
INSERT INTO "question" VALUES('01_attention_basics/who_sees_the_shifted_mask',1,'2026-11-01T12:00:00+00:00',1,'1',7,'2026-11-01T12:00:00+00:00');
INSERT INTO "question" VALUES('02_flash_attention_minimal/two_blocks_of_a_row',1,'2026-11-01T12:00:00+00:00',1,'1',7,'2026-11-01T12:00:00+00:00');
INSERT INTO "question" VALUES('02_flash_attention_minimal/order_of_the_pieces',1,'2026-11-01T12:00:00+00:00',1,'1',7,'2026-11-01T12:00:00+00:00');
INSERT INTO "question" VALUES('02_flash_attention_minimal/first_tile_hidden',1,'2026-11-01T12:00:00+00:00',1,'1',7,'2026-11-01T12:00:00+00:00');
INSERT INTO "question" VALUES('02_flash_attention_minimal/tiles_of_a_causal_mask',1,'2026-11-01T12:00:00+00:00',1,'1',7,'2026-11-01T12:00:00+00:00');
INSERT INTO "question" VALUES('02_flash_attention_minimal/bytes_of_both_orders',1,'2026-11-01T12:00:00+00:00',1,'1',7,'2026-11-01T12:00:00+00:00');
INSERT INTO "question" VALUES('02_flash_attention_minimal/shared_memory_of_the_tiles',1,'2026-11-01T12:00:00+00:00',1,'1',7,'2026-11-01T12:00:00+00:00');
INSERT INTO "question" VALUES('02_flash_attention_minimal/tiles_for_two_blocks',1,'2026-11-01T12:00:00+00:00',1,'1',7,'2026-11-01T12:00:00+00:00');
INSERT INTO "question" VALUES('02_flash_attention_minimal/share_of_the_peak',1,'2026-11-01T12:00:00+00:00',1,'1',7,'2026-11-01T12:00:00+00:00');
INSERT INTO "question" VALUES('02_flash_attention_minimal/what_the_log_sum_exp_knows',1,'2026-11-01T12:00:00+00:00',1,'1',7,'2026-11-01T12:00:00+00:00');
INSERT INTO "question" VALUES('02_flash_attention_minimal/a_test_that_passes',1,'2026-11-01T12:00:00+00:00',1,'1',7,'2026-11-01T12:00:00+00:00');
INSERT INTO "question" VALUES('03_flash_attention_v2/flop_per_byte',1,'2026-11-01T12:00:00+00:00',1,'1',7,'2026-11-01T12:00:00+00:00');
INSERT INTO "question" VALUES('03_flash_attention_v2/wavefronts_of_a_matrix',1,'2026-11-01T12:00:00+00:00',1,'1',7,'2026-11-01T12:00:00+00:00');
INSERT INTO "question" VALUES('03_flash_attention_v2/whose_copies',1,'2026-11-01T12:00:00+00:00',1,'1',7,'2026-11-01T12:00:00+00:00');
INSERT INTO "question" VALUES('03_flash_attention_v2/why_p_stays',1,'2026-11-01T12:00:00+00:00',1,'1',7,'2026-11-01T12:00:00+00:00');
INSERT INTO "question" VALUES('03_flash_attention_v2/queries_per_warp',1,'2026-11-01T12:00:00+00:00',1,'1',7,'2026-11-01T12:00:00+00:00');
INSERT INTO "question" VALUES('03_flash_attention_v2/registers_for_s_and_o',1,'2026-11-01T12:00:00+00:00',1,'1',7,'2026-11-01T12:00:00+00:00');
INSERT INTO "question" VALUES('03_flash_attention_v2/warps_that_fit',1,'2026-11-01T12:00:00+00:00',1,'1',7,'2026-11-01T12:00:00+00:00');
INSERT INTO "question" VALUES('03_flash_attention_v2/cache_of_grouped_heads',1,'2026-11-01T12:00:00+00:00',1,'1',7,'2026-11-01T12:00:00+00:00');
INSERT INTO "question" VALUES('03_flash_attention_v2/a_loss_that_stays',1,'2026-11-01T12:00:00+00:00',1,'1',7,'2026-11-01T12:00:00+00:00');
INSERT INTO "question" VALUES('03_flash_attention_v2/backward_by_tiles',1,'2026-11-01T12:00:00+00:00',1,'1',7,'2026-11-01T12:00:00+00:00');
INSERT INTO "question" VALUES('04_sparse_patterns/what_a_mask_saves',1,'2026-11-01T12:00:00+00:00',1,'1',7,'2026-11-01T12:00:00+00:00');
INSERT INTO "question" VALUES('04_sparse_patterns/density_of_a_pattern',1,'2026-11-01T12:00:00+00:00',1,'1',7,'2026-11-01T12:00:00+00:00');
INSERT INTO "question" VALUES('04_sparse_patterns/tiles_of_three_patterns',1,'2026-11-01T12:00:00+00:00',1,'1',7,'2026-11-01T12:00:00+00:00');
INSERT INTO "question" VALUES('04_sparse_patterns/tiles_not_pairs',1,'2026-11-01T12:00:00+00:00',1,'1',7,'2026-11-01T12:00:00+00:00');
INSERT INTO "question" VALUES('04_sparse_patterns/sorted_by_residue',1,'2026-11-01T12:00:00+00:00',1,'1',7,'2026-11-01T12:00:00+00:00');
INSERT INTO "question" VALUES('04_sparse_patterns/bytes_of_block_lists',1,'2026-11-01T12:00:00+00:00',1,'1',7,'2026-11-01T12:00:00+00:00');
INSERT INTO "question" VALUES('04_sparse_patterns/kernel_for_a_pattern',1,'2026-11-01T12:00:00+00:00',1,'1',7,'2026-11-01T12:00:00+00:00');
INSERT INTO "question" VALUES('04_sparse_patterns/what_can_be_reached',1,'2026-11-01T12:00:00+00:00',1,'1',7,'2026-11-01T12:00:00+00:00');
INSERT INTO "question" VALUES('04_sparse_patterns/pattern_for_a_recall',1,'2026-11-01T12:00:00+00:00',1,'1',7,'2026-11-01T12:00:00+00:00');
INSERT INTO "question" VALUES('04_sparse_patterns/pattern_for_the_data',1,'2026-11-01T12:00:00+00:00',1,'1',7,'2026-11-01T12:00:00+00:00');
INSERT INTO "question" VALUES('05_deepseek_sparse/three_caches',1,'2026-11-01T12:00:00+00:00',1,'1',7,'2026-11-01T12:00:00+00:00');
INSERT INTO "question" VALUES('05_deepseek_sparse/absorption',1,'2026-11-01T12:00:00+00:00',1,'1',7,'2026-11-01T12:00:00+00:00');
INSERT INTO "question" VALUES('05_deepseek_sparse/index_score_by_hand',1,'2026-11-01T12:00:00+00:00',1,'1',7,'2026-11-01T12:00:00+00:00');
INSERT INTO "question" VALUES('05_deepseek_sparse/scale_of_a_vector',1,'2026-11-01T12:00:00+00:00',1,'1',7,'2026-11-01T12:00:00+00:00');
INSERT INTO "question" VALUES('05_deepseek_sparse/test_of_top_k',1,'2026-11-01T12:00:00+00:00',1,'1',7,'2026-11-01T12:00:00+00:00');
INSERT INTO "question" VALUES('05_deepseek_sparse/tiles_without_neighbours',1,'2026-11-01T12:00:00+00:00',1,'1',7,'2026-11-01T12:00:00+00:00');
INSERT INTO "question" VALUES('05_deepseek_sparse/last_token',1,'2026-11-01T12:00:00+00:00',1,'1',7,'2026-11-01T12:00:00+00:00');
INSERT INTO "question" VALUES('05_deepseek_sparse/where_indexer_meets_core',1,'2026-11-01T12:00:00+00:00',1,'1',7,'2026-11-01T12:00:00+00:00');
INSERT INTO "question" VALUES('05_deepseek_sparse/way_to_attend',1,'2026-11-01T12:00:00+00:00',1,'1',7,'2026-11-01T12:00:00+00:00');
INSERT INTO "question" VALUES('05_deepseek_sparse/what_is_said',1,'2026-11-01T12:00:00+00:00',1,'1',7,'2026-11-01T12:00:00+00:00');
INSERT INTO "question" VALUES('08_choosing/what_a_mask_saves',1,'2026-11-01T12:00:00+00:00',1,'1',7,'2026-11-01T12:00:00+00:00');
INSERT INTO "question" VALUES('08_choosing/scores_of_a_layer',1,'2026-11-01T12:00:00+00:00',1,'1',7,'2026-11-01T12:00:00+00:00');
INSERT INTO "question" VALUES('08_choosing/parts_of_flash',1,'2026-11-01T12:00:00+00:00',1,'1',7,'2026-11-01T12:00:00+00:00');
INSERT INTO "question" VALUES('08_choosing/which_fits',1,'2026-11-01T12:00:00+00:00',1,'1',7,'2026-11-01T12:00:00+00:00');
INSERT INTO "question" VALUES('08_choosing/floor_of_flash',1,'2026-11-01T12:00:00+00:00',1,'1',7,'2026-11-01T12:00:00+00:00');
INSERT INTO "question" VALUES('08_choosing/below_the_window',1,'2026-11-01T12:00:00+00:00',1,'1',7,'2026-11-01T12:00:00+00:00');
INSERT INTO "question" VALUES('08_choosing/silent_fallback',1,'2026-11-01T12:00:00+00:00',1,'1',7,'2026-11-01T12:00:00+00:00');
INSERT INTO "question" VALUES('08_choosing/memory_of_a_mask',1,'2026-11-01T12:00:00+00:00',1,'1',7,'2026-11-01T12:00:00+00:00');
INSERT INTO "question" VALUES('08_choosing/out_of_memory',1,'2026-11-01T12:00:00+00:00',1,'1',7,'2026-11-01T12:00:00+00:00');
INSERT INTO "question" VALUES('08_choosing/pick_for_a_target',1,'2026-11-01T12:00:00+00:00',1,'1',7,'2026-11-01T12:00:00+00:00');
INSERT INTO "question" VALUES('08_choosing/quality_check',1,'2026-11-01T12:00:00+00:00',1,'1',7,'2026-11-01T12:00:00+00:00');
COMMIT;
PRAGMA user_version = 2;
